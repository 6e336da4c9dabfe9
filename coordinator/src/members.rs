//! Who a plan can be made of.

use std::collections::BTreeMap;
use tsnode_protocol::{Advert, PeerId};

/// Adverts of peers that count, by id.
pub type Members<'a> = BTreeMap<PeerId, &'a Advert>;
