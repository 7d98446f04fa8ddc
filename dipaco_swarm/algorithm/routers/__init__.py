"""The router: which path a document takes, from the mean hidden state of its first tokens (paper section 2.4).

    router.py            what a router and a kind of router are; routers as bytes
    nearest.py           the router of all the kinds below: the nearest path, in principal components
    fitting.py           what they share when they are fitted
    k_means.py           k-means            a centroid per path
    product_k_means.py   product-k-means    a centroid per module of two levels
    discriminative.py    discriminative     learned from which path likes which document

A stage of router="single" has one path, and no router.
"""
