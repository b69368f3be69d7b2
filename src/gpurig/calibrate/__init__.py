"""A minute of measurements on a card that is there, and the card's own factors from them."""
