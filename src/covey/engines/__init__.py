"""Where methods run: many clients at once (`simulate`), or one site at a time over real bytes
(`loop`).
"""
