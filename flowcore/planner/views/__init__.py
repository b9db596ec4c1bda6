"""Renderings of a plan: text, JSON, Mermaid, SVG."""
