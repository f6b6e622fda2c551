"""Which fusions are on, and in what order (htrain.transform.fusions): each has an option of its own name."""

from htrain.net.net import Net
from htrain.spec.options import Options
from htrain.transform.fusions.fields import fuse_fields
from htrain.transform.fusions.interaction import fuse_interaction
from htrain.transform.fusions.pairs import fuse_pairs
from htrain.transform.fusions.products import fast_products
from htrain.transform.fusions.relu import fuse_relu
from htrain.transform.fusions.servers import fuse_servers
from htrain.transform.fusions.steps import fuse_steps
from htrain.transform.fusions.tables import fuse_tables
from htrain.transform.fusions.taken import fuse_taken
from htrain.transform.repeated import compute_once, join_selects
from htrain.transform.split import split_by_node


def fuse_forward(net: Net, options: Options) -> Net:
    """The fusions of a forward net that are on: gradients are made of the fused ops."""
    net = fuse_relu(net) if options.fusions.relu else net
    net = fuse_fields(net) if options.fusions.fields else net
    return fuse_interaction(net) if options.fusions.interaction else net


def fuse_placed(train: Net, options: Options) -> Net:
    """The fusions of a train net whose ops have their devices that are on; what changes no bits is always done."""
    train = join_selects(train)
    train = fuse_tables(train) if options.fusions.tables else train
    train = fuse_pairs(train) if options.fusions.pairs else train
    train = fuse_taken(train) if options.fusions.tables else train
    train = fuse_steps(train) if options.fusions.steps else train
    train = compute_once(train)
    train = fast_products(train) if options.numerics.fast_products else train
    return fuse_servers(train, split_by_node(train).values()) if options.fusions.servers else train
