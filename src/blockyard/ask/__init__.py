"""`blockyard ask`: from a file to a sweep file that the time decides, with the reason of each choice."""
