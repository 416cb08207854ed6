"""A study between organisations: the permissions of sites, and the work of the server.

Nothing here depends on the transport of messages. A site is a function from bytes to bytes
(`site.open_handler`), a server needs something that exchanges bytes with named sites
(`server.conduct`).
"""
