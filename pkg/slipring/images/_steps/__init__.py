"""Steps of a recipe: the transforms, and what they check and draw."""
