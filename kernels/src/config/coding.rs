//! How weights were quantised for servers, by what `quantization_config` says: FP8, or four bits as GPTQ, AWQ and
//! compressed-tensors lay them down. Everything else is refused by its name.

use super::{
    Keys, ModelConfigError,
    keys::{decimal, is_off},
};
use crate::{
    quant::WordPacking,
    stored::{Coding, Fp8, Int4},
};
use serde_json::Value;

/// What says that weights were quantised, under the names that tools write it.
pub(super) const QUANTISED: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// Most numbers that a file may say share a scale: what a matrix has at most.
const MOST: u64 = 1 << 24;

/// What the file says about it, but for the method `but` that a family reads by itself.
pub(super) fn read(keys: &Keys, but: Option<&str>) -> Result<Option<Coding>, ModelConfigError> {
    for key in QUANTISED {
        match keys.value(key) {
            Some(value) if but.is_some_and(|but| method(value) == but) => return Ok(None),
            Some(value) if !is_off(value) => return of(key, value).map(Some),
            _ => {}
        }
    }
    Ok(None)
}

fn of(key: &'static str, value: &Value) -> Result<Coding, ModelConfigError> {
    let by = method(value);
    let read = match value.get("quant_method").and_then(Value::as_str) {
        Some("fp8") => fp8(value),
        Some("fbgemm_fp8") => Ok(Coding::Fp8(Fp8 { block: None })),
        Some("gptq") => gptq(value),
        Some("awq") => awq(value),
        Some("compressed-tensors") => compressed(value),
        _ => return Err(ModelConfigError::Quantised { key, by }),
    };
    read.map_err(|what| ModelConfigError::Coding { key, by, what })
}

/// What quantised the weights, as far as it says so.
fn method(value: &Value) -> String {
    let said = |key| value.get(key).and_then(Value::as_str);
    let method = said("quant_method").or(said("format")).or(said("quant_algo"));
    method.unwrap_or("a method that it does not name").chars().take(64).flat_map(char::escape_default).collect()
}

/// What is not read of a method: a key, its value, and what would be.
fn other(key: &str, value: &Value, read: &str) -> String {
    let value: String = value.to_string().chars().take(64).flat_map(char::escape_default).collect();
    format!("{key} = {value}, of which {read} is read")
}

/// Refuses a word that is none of `known`; none is the first of them.
fn word<'a>(value: &'a Value, key: &str, known: &[&'static str]) -> Result<&'a str, String> {
    match value.get(key) {
        None | Some(Value::Null) => Ok(known.first().copied().unwrap_or_default()),
        Some(Value::String(word)) if known.contains(&word.as_str()) => Ok(word),
        Some(found) => Err(other(key, found, &known.join(" or "))),
    }
}

fn flag(value: &Value, key: &str, usual: bool) -> Result<bool, String> {
    match value.get(key) {
        None | Some(Value::Null) => Ok(usual),
        Some(found) => found.as_bool().ok_or_else(|| other(key, found, "true or false")),
    }
}

/// The first of `names` that is there must be 4.
fn four_bits(value: &Value, names: &[&str]) -> Result<(), String> {
    let found = names.iter().find_map(|key| Some((key, value.get(*key)?)));
    match found {
        Some((_, bits)) if decimal(bits) == Some(4.0) => Ok(()),
        Some((key, bits)) => Err(other(key, bits, "4")),
        None => Err(format!("no {}", names.join(" or "))),
    }
}

/// Inputs that share a scale; -1 says all of them.
fn group(value: &Value, names: &[&str]) -> Result<Option<usize>, String> {
    let Some((key, found)) = names.iter().find_map(|key| Some((key, value.get(*key)?))) else {
        return Err(format!("no {}", names.join(" or ")));
    };
    match decimal(found) {
        Some(-1.0) => Ok(None),
        Some(size) if size >= 8.0 && size <= MOST as f64 && (size / 8.0).fract() == 0.0 => Ok(Some(size as usize)),
        _ => Err(other(key, found, "a multiple of 8, or -1,")),
    }
}

/// Outputs and inputs of a block.
fn block(value: &Value, key: &str) -> Result<Option<[usize; 2]>, String> {
    let size = |v: &Value| v.as_u64().filter(|n| (1..=MOST).contains(n)).map(|n| n as usize);
    let Some(found) = value.get(key).filter(|found| !found.is_null()) else { return Ok(None) };
    let sizes = match found.as_array().map(Vec::as_slice) {
        Some([outputs, inputs]) => size(outputs).zip(size(inputs)),
        _ => None,
    };
    sizes.map(|(outputs, inputs)| Some([outputs, inputs])).ok_or_else(|| other(key, found, "a pair of sizes"))
}

fn fp8(value: &Value) -> Result<Coding, String> {
    word(value, "fmt", &["e4m3", "float8_e4m3fn"])?;
    word(value, "activation_scheme", &["dynamic", "static"])?;
    Ok(Coding::Fp8(Fp8 { block: block(value, "weight_block_size")? }))
}

fn gptq(value: &Value) -> Result<Coding, String> {
    four_bits(value, &["bits"])?;
    let format = word(value, "checkpoint_format", &["gptq", "gptq_v2"])?;
    if flag(value, "is_marlin_format", false)? {
        return Err("is_marlin_format = true, of which false is read".into());
    }
    // Rules for some matrices: those that leave one as it is show in its tensors, others would change how it is read.
    let rules = value.get("dynamic").and_then(Value::as_object);
    if let Some((rule, _)) = rules.and_then(|rules| rules.iter().find(|(rule, _)| !rule.starts_with('-'))) {
        return Err(other("dynamic", &Value::String(rule.clone()), "a rule that begins with -"));
    }
    let group = group(value, &["group_size"])?;
    Ok(Coding::Int4(Int4 {
        layout: WordPacking::Gptq,
        group,
        symmetric: flag(value, "sym", true)?,
        less_one: format == "gptq",
        by_index: flag(value, "desc_act", false)? && group.is_some(),
    }))
}

fn awq(value: &Value) -> Result<Coding, String> {
    four_bits(value, &["bits", "w_bit"])?;
    let version = value.get("version").and_then(Value::as_str).map(str::to_ascii_lowercase);
    if let Some(version) = version.filter(|version| version != "gemm") {
        return Err(other("version", &Value::String(version), "gemm"));
    }
    if !flag(value, "zero_point", true)? {
        return Err("zero_point = false, of which true is read".into());
    }
    let group = group(value, &["group_size", "q_group_size"])?;
    Ok(Coding::Int4(Int4 { layout: WordPacking::Awq, group, symmetric: false, less_one: false, by_index: false }))
}

/// Groups of modules, each with a scheme: all must have the same for weights.
fn compressed(value: &Value) -> Result<Coding, String> {
    let sparse = value.get("sparsity_config").and_then(|sparsity| sparsity.get("format"));
    if let Some(format) = sparse.filter(|format| format.as_str() != Some("dense")) {
        return Err(other("sparsity_config.format", format, "dense"));
    }
    let groups = value.get("config_groups").and_then(Value::as_object).ok_or("no config_groups")?;
    let mut schemes = groups.values().filter_map(|group| group.get("weights")).filter(|weights| !weights.is_null());
    let scheme = schemes.next().ok_or("no weights in config_groups")?;
    let format = value.get("format").and_then(Value::as_str).unwrap_or("naive-quantized");
    let coding = scheme_of(scheme, format)?;
    for another in schemes {
        if scheme_of(another, format)? != coding {
            return Err("several config_groups whose weights differ, of which one is read".into());
        }
    }
    Ok(coding)
}

fn scheme_of(weights: &Value, format: &str) -> Result<Coding, String> {
    let strategy = word(weights, "strategy", &["tensor", "channel", "group", "block"])?;
    let kind = word(weights, "type", &["int", "float"])?;
    let bits = weights.get("num_bits").unwrap_or(&Value::Null);
    match (kind, decimal(bits), format) {
        ("float", Some(8.0), "float-quantized" | "naive-quantized") => match strategy {
            "tensor" | "channel" => Ok(Coding::Fp8(Fp8 { block: None })),
            "block" => match block(weights, "block_structure")? {
                Some(sizes) => Ok(Coding::Fp8(Fp8 { block: Some(sizes) })),
                None => Err("no block_structure".into()),
            },
            _ => Err(other("strategy", &Value::String(strategy.into()), "tensor, channel or block")),
        },
        ("int", Some(4.0), "pack-quantized") => {
            let group = match strategy {
                "group" => group(weights, &["group_size"])?,
                "channel" => None,
                _ => return Err(other("strategy", &Value::String(strategy.into()), "group or channel")),
            };
            let order = weights.get("actorder").and_then(Value::as_str).unwrap_or_default();
            Ok(Coding::Int4(Int4 {
                layout: WordPacking::Compressed,
                group,
                symmetric: flag(weights, "symmetric", true)?,
                less_one: false,
                by_index: order == "group",
            }))
        }
        _ => Err(format!(
            "{}: weights of type {kind} and {bits} bits, of which float of 8 bits (float-quantized) and int of 4 \
             (pack-quantized) are read",
            format.chars().take(64).flat_map(char::escape_default).collect::<String>()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn coding(value: &Value) -> Result<Coding, String> {
        of(QUANTISED[0], value).map_err(|error| error.to_string())
    }

    const GPTQ: Int4 =
        Int4 { layout: WordPacking::Gptq, group: Some(128), symmetric: true, less_one: true, by_index: false };

    #[test]
    fn what_servers_quantise_by_is_read() {
        let fp8 = |block| Ok(Coding::Fp8(Fp8 { block }));
        let deepseek = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]});
        assert_eq!(coding(&deepseek), fp8(Some([128, 128])));
        assert_eq!(coding(&json!({"quant_method": "fp8", "activation_scheme": "static"})), fp8(None));
        let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false});
        assert_eq!(coding(&gptq), Ok(Coding::Int4(GPTQ)));
        let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": false, "desc_act": true,
            "checkpoint_format": "gptq_v2", "dynamic": {"-:.*mlp.*": {}}});
        let expected =
            Int4 { group: Some(64), symmetric: false, less_one: false, by_index: true, layout: WordPacking::Gptq };
        assert_eq!(coding(&gptq), Ok(Coding::Int4(expected)));
        // One group: the order of inputs changes nothing.
        let one = json!({"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": true});
        assert_eq!(coding(&one), Ok(Coding::Int4(Int4 { group: None, ..GPTQ })));
        let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "GEMM"});
        let expected = Int4 { layout: WordPacking::Awq, symmetric: false, less_one: false, ..GPTQ };
        assert_eq!(coding(&awq), Ok(Coding::Int4(expected)));
        let packed = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128,
                "symmetric": true, "actorder": null}, "targets": ["Linear"]}}});
        assert_eq!(
            coding(&packed),
            Ok(Coding::Int4(Int4 { layout: WordPacking::Compressed, less_one: false, ..GPTQ }))
        );
        let channel = json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
            "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}});
        assert_eq!(coding(&channel), fp8(None));
    }

    #[test]
    fn what_is_not_read_of_a_method_is_named() {
        let weights = |weights: Value, format: &str| {
            json!({"quant_method": "compressed-tensors", "format": format,
                "config_groups": {"group_0": {"weights": weights}}})
        };
        for (value, parts) in [
            (json!({"quant_method": "bitsandbytes", "load_in_4bit": true}), ["bitsandbytes", "GGUF"]),
            (json!({"quant_method": "gptq", "bits": 3, "group_size": 128}), ["bits = 3", "gptq"]),
            (json!({"quant_method": "gptq", "group_size": 128}), ["no bits", "gptq"]),
            (json!({"quant_method": "gptq", "bits": 4}), ["no group_size", "gptq"]),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), ["group_size = 0", "gptq"]),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 1e30}), ["group_size", "gptq"]),
            (
                json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}),
                ["checkpoint_format", "marlin"],
            ),
            (
                json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:x": {"bits": 8}}}),
                ["dynamic", "+:x"],
            ),
            (json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}), ["version", "gemv"]),
            (json!({"quant_method": "awq", "w_bit": 3, "group_size": 128}), ["w_bit = 3", "awq"]),
            (json!({"quant_method": "fp8", "fmt": "e5m2"}), ["fmt", "e5m2"]),
            (json!({"quant_method": "fp8", "weight_block_size": [128]}), ["weight_block_size", "[128]"]),
            (json!({"quant_method": "fp8", "weight_block_size": [0, 128]}), ["weight_block_size", "[0,128]"]),
            (json!({"quant_method": "compressed-tensors"}), ["no config_groups", "compressed-tensors"]),
            (weights(json!({"num_bits": 8, "type": "int"}), "int-quantized"), ["int-quantized", "8 bits"]),
            (weights(json!({"num_bits": 4, "type": "float"}), "nvfp4-pack-quantized"), ["nvfp4", "4 bits"]),
            (
                weights(json!({"num_bits": 8, "type": "float", "strategy": "token"}), "float-quantized"),
                ["strategy", "token"],
            ),
        ] {
            let error = coding(&value).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{value}: {error}");
        }
    }
}
