"""Engines, which run methods: many clients at once (`simulate`), one site at a time over real bytes
(`loop`), between peers (`peers`), or in the actors of a cluster (`ray`).
"""
