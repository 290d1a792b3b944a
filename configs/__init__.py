"""Configuration files as package data: studies, link profiles and hardware profiles."""
