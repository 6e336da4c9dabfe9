//! What an answer's tokens rest on, as clients read and fix it: `system_fingerprint`, `kv_codec`, and in events' ids.

use super::{ApiError, ApiState, fields::Fields};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tsnode_protocol::{DeviceKind, KvCodec, ModelId};

/// The field of a request's body that fixes what its prompt's KV goes through.
const FIELD: &str = "kv_codec";
/// Bytes of a model's id that are told: who compares fingerprints asks for the same model.
const MODEL_BYTES: usize = 6;

/// Packings by their names.
pub(super) const CODECS: [(KvCodec, &str); 4] =
    [(KvCodec::Raw, "raw"), (KvCodec::Int3, "int3"), (KvCodec::Int4, "int4"), (KvCodec::Int8, "int8")];

/// A packing's name.
pub(super) fn name(codec: KvCodec) -> &'static str {
    CODECS.iter().find(|(known, _)| *known == codec).map_or("raw", |(_, name)| name)
}

/// What the client wants its prompt's KV to go through, if it says so.
pub(super) fn kv_codec(fields: &mut Fields, state: &ApiState) -> Result<Option<KvCodec>, ApiError> {
    let Some(asked) = fields.text(FIELD)? else { return Ok(None) };
    let found = CODECS.iter().find(|(_, name)| *name == asked);
    let Some((codec, _)) = found else {
        let names = CODECS.map(|(_, name)| name).join(", ");
        return Err(ApiError::param(FIELD, format!("'{FIELD}' must be one of {names}")));
    };
    let is_gpu = |kind: &DeviceKind| matches!(kind, DeviceKind::Cuda(_));
    let has_gpus = || state.view.borrow().peers.iter().flat_map(|p| &p.advert.devices).any(|d| is_gpu(&d.kind));
    if *codec == KvCodec::Int3 && has_gpus() {
        return Err(ApiError::param(FIELD, "'int3' is not for swarms with graphics GPUs: ask for int4"));
    }
    Ok(Some(*codec))
}

/// The fingerprint of answers by one model; null while nothing is known of any.
pub(super) fn of(model: ModelId, codecs: impl IntoIterator<Item = Option<KvCodec>>) -> Value {
    let mut seen = BTreeSet::new();
    let names: Vec<&str> = codecs.into_iter().flatten().map(name).filter(|name| seen.insert(*name)).collect();
    if names.is_empty() {
        return Value::Null;
    }
    let model = data_encoding::HEXLOWER.encode(&model.0[..MODEL_BYTES]);
    json!(format!("fp_{model}_{}", names.join("+")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_names_the_model_and_each_packing_once() {
        let model = ModelId(std::array::from_fn(|i| i as u8));
        let of = |codecs: &[Option<KvCodec>]| of(model, codecs.iter().copied());
        assert_eq!(of(&[Some(KvCodec::Int4)]), "fp_000102030405_int4");
        assert_eq!(
            of(&[Some(KvCodec::Raw), None, Some(KvCodec::Int4), Some(KvCodec::Raw)]),
            "fp_000102030405_raw+int4"
        );
        assert_eq!(of(&[None]), Value::Null);
        assert_eq!(CODECS.map(|(codec, _)| name(codec)), CODECS.map(|(_, name)| name));
    }
}
