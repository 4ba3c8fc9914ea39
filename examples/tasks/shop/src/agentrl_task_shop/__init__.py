"""Search a shop and buy what is needed.

catalogue (products from a seed) -> index (SQLite FTS5, shared by all episodes) --+
                                       |                                          v
                                       +--> needs (requirements, in words) --> Shop task
"""

from agentrl_task_shop.catalogue import Product, make_products
from agentrl_task_shop.index import Index, make_index
from agentrl_task_shop.needs import Need, make_need
from agentrl_task_shop.task import Shop

__all__ = ["Index", "Need", "Product", "Shop", "make_index", "make_need", "make_products"]
