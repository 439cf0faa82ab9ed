"""Clouds: the APIs of Vast.ai and Prime Intellect on loopback, with meter, boxes and faults."""
