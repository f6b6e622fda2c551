"""Where boxes and flows of a drawn net stand."""

from htrain.report.boxes import Picture
from htrain.report.columns import in_columns
from htrain.report.geometry import PictureLayout
from htrain.report.lanes import in_lanes


def layout_of(picture: Picture) -> PictureLayout:
    """The layout of a picture: a lane for each device, or columns where there is one device alone. The same picture gives the same one."""
    return in_lanes(picture) if len(picture.lanes) > 1 else in_columns(picture)
