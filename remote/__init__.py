"""The cargo: what travels to a rented box.  Imports only itself, torch and numpy."""
