"""Search over offers and recipes. Pure: facts and predictions come in, a Plan goes out."""
