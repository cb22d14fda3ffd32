"""Server-rendered pages: thin routers here, their SQL in `query/`.

Pages are plain HTML without inline scripts or styles, under a strict Content-Security-Policy; live parts
are fragments of pages, fetched by htmx.
"""
