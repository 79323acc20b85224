"""The pages that a MetaQ 1.x server has at its dashboardHttpPort: plain HTML without scripts, or JSON."""
