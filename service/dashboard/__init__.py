"""Server-rendered pages on what the store holds: thin routers here, their SQL in `query/`.

Pages are plain HTML without any inline script or style, so that a strict Content-Security-Policy
holds; what is live or on demand is a fragment of a page, fetched by htmx.
"""
