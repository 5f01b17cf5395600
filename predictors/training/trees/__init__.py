"""Choice of the delayed tree at every root: labels of trees and prices of steps into a selector (family ``tree``)."""
