"""What GPUs exist and what can be rented: facts as data, loaded, checked and queried.

`gpus` hardware facts and MIG profiles, `names` from any spelling to exact parts, `offers` what is rentable,
`quality` which prices are not believed and why, `query` filters, `prices` currencies and the user's own prices,
`refresh` newer price lists.
"""
