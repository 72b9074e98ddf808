"""From encoded bytes to pixels: recipes, geometry, boxes, masks and the call of the decoder."""
