"""Opening a store folder."""
