"""How long a step takes on a card, and what measured steps say of that."""
