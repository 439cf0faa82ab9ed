"""Models, each a core that ACT runs step by step."""
