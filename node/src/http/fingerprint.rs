//! What an answer's tokens rest on, as clients read and fix it: `system_fingerprint`, `kv_codec`, and in events' ids.

use super::{ApiError, ApiState, fields::Fields};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tsnode_protocol::{DeviceKind, KvCodec, ModelId, PromptCodec};

/// The field of a request's body that fixes what its prompt's KV goes through.
const FIELD: &str = "kv_codec";
/// Bytes of a model's id that are told: who compares fingerprints asks for the same model.
const MODEL_BYTES: usize = 6;

/// Packings by their names.
const CODECS: [(KvCodec, &str); 4] =
    [(KvCodec::Raw, "raw"), (KvCodec::Int3, "int3"), (KvCodec::Int4, "int4"), (KvCodec::Int8, "int8")];

/// Before the number of tokens that go through a packing, where those are a prompt's first ones.
const OF_FIRST: char = '@';

/// The name of what a prompt's KV goes through: `int4`, or of its first 128 tokens `int4@128`.
pub(super) fn name(codec: PromptCodec) -> String {
    let packing = CODECS.iter().find(|(known, _)| *known == codec.codec).map_or("raw", |(_, name)| name);
    codec.first.map_or_else(|| packing.to_owned(), |first| format!("{packing}{OF_FIRST}{first}"))
}

/// What has that name.
pub(super) fn read(name: &str) -> Option<PromptCodec> {
    let (packing, first) = name.split_once(OF_FIRST).map_or((name, None), |(packing, first)| (packing, Some(first)));
    let (codec, _) = *CODECS.iter().find(|(_, known)| *known == packing)?;
    let first = match first {
        Some(tokens) => Some(tokens.parse().ok()?),
        None => None,
    };
    let codec = PromptCodec { codec, first };
    codec.check().is_ok().then_some(codec)
}

/// What the client wants its prompt's KV to go through, if it says so.
pub(super) fn kv_codec(fields: &mut Fields, state: &ApiState) -> Result<Option<PromptCodec>, ApiError> {
    let Some(asked) = fields.text(FIELD)? else { return Ok(None) };
    let Some(codec) = read(&asked) else {
        let (names, group) = (CODECS.map(|(_, name)| name).join(", "), PromptCodec::GROUP);
        let of_first = format!("for a prompt's first tokens alone followed by @ and a multiple of {group}");
        return Err(ApiError::param(FIELD, format!("'{FIELD}' must be one of {names}, {of_first}")));
    };
    let is_gpu = |kind: &DeviceKind| matches!(kind, DeviceKind::Cuda(_));
    let has_gpus = || state.view.borrow().peers.iter().flat_map(|p| &p.advert.devices).any(|d| is_gpu(&d.kind));
    if codec.codec == KvCodec::Int3 && has_gpus() {
        return Err(ApiError::param(FIELD, "'int3' is not for swarms with graphics GPUs: ask for int4"));
    }
    Ok(Some(codec))
}

/// The fingerprint of answers by one model; null while nothing is known of any.
pub(super) fn of(model: ModelId, codecs: impl IntoIterator<Item = Option<PromptCodec>>) -> Value {
    let mut seen = BTreeSet::new();
    let names: Vec<String> = codecs.into_iter().flatten().map(name).filter(|name| seen.insert(name.clone())).collect();
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
        let of = |codecs: &[Option<KvCodec>]| of(model, codecs.iter().map(|codec| codec.map(Into::into)));
        assert_eq!(of(&[Some(KvCodec::Int4)]), "fp_000102030405_int4");
        assert_eq!(
            of(&[Some(KvCodec::Raw), None, Some(KvCodec::Int4), Some(KvCodec::Raw)]),
            "fp_000102030405_raw+int4"
        );
        assert_eq!(of(&[None]), Value::Null);
        assert_eq!(CODECS.map(|(codec, _)| name(codec.into())), CODECS.map(|(_, name)| name));
    }

    #[test]
    fn a_prompt_that_was_parted_is_named_with_its_first_part() {
        let parted = PromptCodec::of_first(KvCodec::Int4, 128, 300);
        assert_eq!((name(parted), read("int4@128")), ("int4@128".to_owned(), Some(parted)));
        for wrong in ["int4@", "int4@0", "int4@100", "int4@-64", "@64", "int4@64@64", "int5@64", "int4@99999999999"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
