"""The reference flow: an online auction, after the Nexmark benchmark."""
