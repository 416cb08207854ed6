"""Covey on NVIDIA FLARE: kits with certificates, processes, and messages as tasks.

NVFlare moves bytes between the server and the sites, over mutual TLS. It knows nothing of methods,
and no other part of Covey imports it.
"""
