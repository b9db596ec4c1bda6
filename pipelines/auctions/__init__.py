"""The reference flow: an online auction."""
