//! The IAA driver: deflate-iaa and deflate-iaa-dynamic over idxd
