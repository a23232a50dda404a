"""A check of somebody's own deployment: many processes that lock, faults from outside, and a judge over what they wrote down."""
