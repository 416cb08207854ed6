"""A study between organisations: what a site allows, what a server conducts.

Nothing here knows how messages travel. A site is a function from bytes to bytes
(`site.open_handler`), a server needs something that exchanges bytes with named sites
(`server.conduct`).
"""
