"""stub"""


def class_of(place):
    return None


def every_place():
    return []
