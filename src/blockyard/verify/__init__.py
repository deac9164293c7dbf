"""Holds a component to what it declares: the checks of the project's own tests, for components of anybody's."""
