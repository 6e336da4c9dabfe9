//! What of a configuration is read, and what is refused by name.

use super::*;

const LLAMA: &str = r#"{"model_type":"llama","num_hidden_layers":2,"hidden_size":8,"intermediate_size":16,
    "num_attention_heads":2,"vocab_size":10,"max_position_embeddings":64}"#;

fn with(more: &str) -> Result<ModelConfig, ModelConfigError> {
    let base = LLAMA.trim_end().trim_end_matches('}');
    ModelConfig::parse(format!("{base},{more}}}").as_bytes())
}

#[test]
fn what_is_left_out_has_its_usual_value() {
    let config = ModelConfig::parse(LLAMA.as_bytes()).unwrap();
    assert_eq!((config.kv_heads, config.head_dim, config.rope_theta), (2, 4, 10_000.0));
}

#[test]
fn both_forms_of_rope_are_read() {
    let new = with(r#""rope_parameters":{"rope_theta":5e5,"rope_type":"default"}"#).unwrap();
    assert_eq!((new.rope_theta, new.rope_scaling), (5e5, RopeScaling::None));
    let old = with(r#""rope_scaling":{"type":"linear","factor":2.0}"#).unwrap();
    assert_eq!(old.rope_scaling, RopeScaling::Linear { factor: 2.0 });
}

#[test]
fn what_is_not_written_is_named() {
    let other = ModelConfig::parse(LLAMA.replace("llama", "mamba").as_bytes());
    assert!(other.unwrap_err().to_string().contains("mamba"));
    assert!(with(r#""hidden_act":"gelu""#).unwrap_err().to_string().contains("gelu"));
    assert!(ModelConfigError::Family("mamba".into()).to_string().contains("gemma2, gemma3_text"));
    assert!(with(r#""sliding_window":32"#).unwrap_err().to_string().contains("sliding_window"));
    assert!(matches!(with(r#""num_key_value_heads":0"#), Err(ModelConfigError::Shape(_))));
    assert!(matches!(ModelConfig::parse(b"{"), Err(ModelConfigError::Json(_))));
    assert!(matches!(ModelConfig::parse("[".repeat(9999).as_bytes()), Err(ModelConfigError::Json(_))));
}

/// As Python reads them, whatever they are written like; the last of two counts.
#[test]
fn numbers_are_read_however_they_are_written() {
    let config = with(
        r#""max_position_embeddings":512.0,"num_key_value_heads":null,"rms_norm_eps":"1e-05","hidden_size":8.0,
        "head_dim":null,"rope_theta":"500000","tie_word_embeddings":1"#,
    )
    .unwrap();
    assert_eq!((config.context, config.kv_heads, config.head_dim, config.hidden), (512, 2, 4, 8));
    assert_eq!((config.norm_eps, config.rope_theta, config.tied), (1e-5, 500_000.0, true));
    assert_eq!(config.notes, [""; 0]);
    let marked = ModelConfig::parse(format!("\u{feff}{LLAMA}").as_bytes()).unwrap();
    assert_eq!(marked, ModelConfig::parse(LLAMA.as_bytes()).unwrap());
    for (key, value) in [
        ("hidden_size", "8.5"),
        ("num_hidden_layers", "-1"),
        ("num_hidden_layers", "[2]"),
        ("num_attention_heads", "99999999999"),
        ("rms_norm_eps", "\"small\""),
        ("rms_norm_eps", "Infinity"),
        ("rms_norm_eps", "NaN"),
        ("rope_theta", "1e+300"),
        ("max_position_embeddings", "512.5"),
        ("max_position_embeddings", "0"),
        ("max_position_embeddings", "NaN"),
        ("tie_word_embeddings", "\"yes\""),
    ] {
        let error = with(&format!("\"{key}\":{value}")).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(value.trim_matches('"')), "{key} {value}: {error}");
        assert!(error.lines().count() == 1, "{error}");
    }
    for key in ["vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "num_attention_heads"] {
        let error = with(&format!("\"{key}\":null")).unwrap_err();
        assert_eq!(error, ModelConfigError::Missing(key));
    }
}

#[test]
fn a_context_without_bound_ends_where_sequences_do() {
    let most = limits::SEQUENCE_TOKENS;
    for (huge, said) in [("1e30", "1000000"), ("1000000000000000019884624838656", "1000000"), ("Infinity", "inf")] {
        let config = with(&format!("\"max_position_embeddings\":{huge}")).unwrap();
        assert_eq!(config.context, most as usize, "{huge}");
        let [note] = &config.notes[..] else { panic!("{:?}", config.notes) };
        assert!(note.contains("max_position_embeddings") && note.contains(said), "{note}");
        assert!(note.contains(&most.to_string()), "{note}");
    }
    let just = with(&format!("\"max_position_embeddings\":{most}")).unwrap();
    assert_eq!((just.context, just.notes), (most as usize, vec![]));
}

#[test]
fn a_model_type_that_is_missing_is_that_of_the_architecture() {
    let plain = ModelConfig::parse(LLAMA.as_bytes()).unwrap();
    let without = |more: &str| ModelConfig::parse(LLAMA.replace(r#""model_type":"llama""#, more).as_bytes());
    for more in
        [r#""architectures":["LlamaForCausalLM"]"#, r#""model_type":null,"architectures":["X","LLaMAForCausalLM"]"#]
    {
        let read = without(more).unwrap();
        assert!(read.notes[0].contains("model_type") && read.notes[0].contains("llama"), "{:?}", read.notes);
        assert_eq!(ModelConfig { notes: Vec::new(), ..read }, plain);
    }
    for family in models::classes() {
        let class = format!("\"architectures\":[{family:?}]");
        // Whether the rest suits it is another matter.
        assert!(!matches!(without(&class), Err(ModelConfigError::NoFamily | ModelConfigError::Family(_))), "{class}");
    }
    for more in [r#""architectures":["MambaForCausalLM"]"#, r#""architectures":null"#, r#""architectures":7"#] {
        let error = without(more).unwrap_err().to_string();
        assert!(error.contains("model_type") && error.contains("LlamaForCausalLM"), "{error}");
    }
    // transformers goes by the type, vLLM by the class: which of them is said.
    let two = with(r#""architectures":["GraniteForCausalLM"]"#).unwrap();
    assert!(two.notes[0].contains("GraniteForCausalLM") && two.notes[0].contains("llama"), "{:?}", two.notes);
    assert_eq!(with(r#""architectures":["LlamaForCausalLM"]"#).unwrap().notes, [""; 0]);
}

#[test]
fn quantised_weights_are_refused_by_their_method() {
    for (more, parts) in [
        (r#""quantization_config":{"quant_method":"gptq","bits":3}"#, ["quantization_config", "gptq"]),
        (r#""quantization_config":{"quant_method":"awq","w_bit":2}"#, ["quantization_config", "awq"]),
        (r#""quantization_config":{"quant_method":"fp8","fmt":"e5m2"}"#, ["quantization_config", "fp8"]),
        (r#""quantization_config":{"load_in_4bit":true}"#, ["quantization_config", "not name"]),
        (r#""quantization_config":"int8""#, ["quantization_config", "not name"]),
        (r#""compression_config":{"format":"pack-quantized"}"#, ["compression_config", "pack-quantized"]),
        (r#""quantization":{"group_size":64,"bits":4}"#, ["quantization", "not name"]),
    ] {
        for model_type in models::types() {
            let error = typed(model_type, more).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{model_type} {more}: {error}");
        }
    }
    for none in [r#""quantization_config":null"#, r#""quantization_config":{}"#] {
        assert_eq!(with(none).unwrap().notes, [""; 0]);
    }
}

#[test]
fn keys_that_change_the_arithmetic_are_refused_by_name() {
    for (key, other, neutral) in [
        ("attention_multiplier", "0.0078125", "0.5"),
        ("query_pre_attn_scalar", "16", "4"),
        ("embedding_multiplier", "12.0", "1.0"),
        ("residual_multiplier", "0.22", "1"),
        ("logits_scaling", "8.0", "1.0"),
        ("logit_scale", "0.0625", "1.0"),
        ("scale_depth", "2.5", "1.4142135"),
        ("mlp_multipliers", "[1.0, 0.5]", "[1.0, 1.0]"),
        ("attn_logit_softcapping", "50.0", "null"),
        ("final_logit_softcapping", "30.0", "0.0"),
        ("no_rope_layers", "[1, 0]", "[1, 1]"),
        ("no_rope_layer_interval", "4", "null"),
        ("rope_interleaved", "true", "false"),
        ("partial_rotary_factor", "0.3", "1.0"),
        ("rotary_pct", "0.25", "1.0"),
        ("position_embedding_type", "\"alibi\"", "\"rope\""),
        ("layer_types", "[\"full_attention\",\"chunked_attention\"]", "[\"full_attention\",\"full_attention\"]"),
        ("attention_chunk_size", "8192", "null"),
        ("use_bidirectional_attention", "true", "false"),
        ("is_causal", "false", "true"),
        ("use_qk_norm", "true", "false"),
        ("clip_qkv", "8.0", "null"),
        ("num_local_experts", "8", "0"),
        ("norm_type", "\"layernorm\"", "\"rmsnorm\""),
        ("lm_head_bias", "true", "false"),
        ("use_parallel_residual", "true", "false"),
        ("pruned_heads", "{\"0\": [1]}", "{}"),
    ] {
        let error = with(&format!("\"{key}\":{other}")).unwrap_err().to_string();
        assert!(error.contains(key), "{key}: {error}");
        let config = with(&format!("\"{key}\":{neutral}")).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(config.notes, [""; 0], "{key}");
        let null = with(&format!("\"{key}\":null")).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(null.notes, [""; 0], "{key}");
    }
    let by_layer = r#""rope_parameters":{"full_attention":{"rope_type":"default","rope_theta":1e6}}"#;
    assert!(with(by_layer).unwrap_err().to_string().contains("rope_parameters"));
    for key in ["enable_bias", "layer_norm_elementwise_affine", "do_layer_norm_before"] {
        assert!(typed("opt", &format!("\"{key}\":false")).unwrap_err().to_string().contains(key));
    }
    assert!(typed("opt", r#""_remove_final_layer_norm":true"#).unwrap_err().to_string().contains("final_layer"));
}

#[test]
fn keys_that_a_reference_ignores_are_ignored() {
    let same = |model_type: &str, more: &str| {
        let (plain, other) = (typed(model_type, r#""use_cache":true"#).unwrap(), typed(model_type, more).unwrap());
        assert_eq!(plain, other, "{model_type} {more}");
    };
    same("llama", r#""pretraining_tp":4,"is_llama_config":true,"rope_interleaved":false,"attention_dropout":0.1"#);
    same("llama", r#""auto_map":{"AutoModel":"x.Y"},"_name_or_path":"x","torch_dtype":"bfloat16","num_labels":3"#);
    same("llama", r#""hidden_activation":"gelu","decoder_start_token_id":7,"initializer_range":NaN"#);
    same("qwen2", r#""sliding_window":131072,"max_window_layers":70,"use_sliding_window":false"#);
    same("qwen2", r#""dual_chunk_attention_config":{"chunk_size":8},"use_mrope":true"#);
    same("qwen3", r#""use_qk_norm":true"#);
    same("gemma2", r#""hidden_act":"gelu","cache_implementation":"hybrid""#);
    same("opt", r#""layer_norm_eps":0.1,"layerdrop":0.5,"dropout":0.1,"init_std":0.02"#);
    // Of one family is not of all.
    assert!(with(r#""use_qk_norm":true"#).is_err());
    // What nobody knows is told of.
    let odd = with(r#""frobnicate":3,"other_thing":"x","off":false,"none":null"#).unwrap();
    assert_eq!(odd.notes, ["config.json: frobnicate, other_thing: not known, and not read"]);
}

#[test]
fn what_a_reference_fills_in_is_filled_in() {
    assert_eq!(typed("phi3", r#""use_cache":true"#).unwrap().norm_eps, 1e-5);
    assert_eq!(typed("gemma3_text", r#""use_cache":true"#).unwrap().rope_theta, 1e6);
    assert_eq!(typed("opt", r#""layer_norm_eps":0.1"#).unwrap().norm_eps, 1e-5);
    // Of two places the inner one, of two names the old one.
    let twice = r#""rope_theta":1e4,"rope_parameters":{"rope_theta":5e5},"rope_scaling":{"type":"linear","factor":2}"#;
    let config = with(twice).unwrap();
    assert_eq!((config.rope_theta, config.rope_scaling), (1e4, RopeScaling::Linear { factor: 2.0 }));
    assert_eq!(with(r#""rope_theta":1e4,"rope_parameters":{"rope_theta":5e5}"#).unwrap().rope_theta, 5e5);
}

fn typed(model_type: &str, more: &str) -> Result<ModelConfig, ModelConfigError> {
    let base = LLAMA.replace("llama", model_type);
    ModelConfig::parse(format!("{},{more}}}", base.trim_end_matches('}')).as_bytes())
}

#[test]
fn windows_are_of_the_layers_that_have_them() {
    let windows = |model_type, more| typed(model_type, more).unwrap().windows;
    assert_eq!(windows("mistral", r#""sliding_window":32"#), [Some(32); 2]);
    assert_eq!(windows("mistral", r#""sliding_window":null"#), [None; 2]);
    assert_eq!(windows("qwen2", r#""sliding_window":32"#), [None; 2]);
    let qwen = r#""sliding_window":32,"use_sliding_window":true,"max_window_layers":1"#;
    assert_eq!(windows("qwen2", qwen), [None, Some(32)]);
    assert_eq!(windows("gemma2", r#""sliding_window":32"#), [Some(32), None]);
    let named = r#""sliding_window":32,"layer_types":["full_attention","sliding_attention"]"#;
    assert_eq!(windows("gemma2", named), [None, Some(32)]);
    for wrong in [r#"["full_attention"]"#, r#"["full_attention","chunked_attention"]"#, "7", "[1,2]"] {
        let wrong = typed("gemma2", &format!(r#""sliding_window":32,"layer_types":{wrong}"#)).unwrap_err();
        assert!(wrong.to_string().contains("layer_types"), "{wrong}");
    }
    assert_eq!(windows("mistral", r#""rope_theta":1e4"#), [Some(4096); 2]);
    let none = typed("gemma2", &named.replace("32", "null")).unwrap_err();
    assert!(none.to_string().contains("sliding_window"), "{none}");
    assert!(typed("mistral", r#""sliding_window":0"#).unwrap_err().to_string().contains("sliding_window"));
}

#[test]
fn layers_with_a_window_may_turn_otherwise() {
    let old = r#""rope_theta":1e6,"rope_local_base_freq":500.0,"rope_scaling":{"rope_type":"linear","factor":8.0}"#;
    let new = r#""rope_parameters":{"sliding_attention":{"rope_type":"default","rope_theta":500.0},
        "full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":1e6}}"#;
    for form in [old, new] {
        let config = typed("gemma3_text", form).unwrap();
        let other = config.other_rope.and_then(|other| other.theta);
        assert_eq!((config.rope_theta, other), (1e6, Some(500.0)));
        assert_eq!(config.rope_scaling, RopeScaling::Linear { factor: 8.0 });
    }
    assert!(typed("gemma3_text", r#""attn_logit_softcapping":50.0"#).is_err());
}

#[test]
fn contexts_end_where_the_short_factors_do() {
    let rope = r#""rope_scaling":{"type":"su","short_factor":[1.0,2.0],"long_factor":[3.0,4.0]},
        "original_max_position_embeddings":16"#;
    let config = typed("phi3", rope).unwrap();
    assert_eq!(config.context, 16);
    let RopeScaling::Long { factors, amplitude } = config.rope_scaling else { panic!("not long") };
    // 64 tokens of 16: the root of 1 + ln 4 / ln 16.
    assert_eq!((factors, amplitude), (vec![1.0, 2.0], 1.5f32.sqrt()));
    for (from, to) in [("[1.0,2.0]", "[1.0]"), ("[1.0,2.0]", "[1.0,-2.0]"), ("16", "1"), ("16", "\"x\"")] {
        assert!(typed("phi3", &rope.replace(from, to)).is_err(), "{from} as {to}");
    }
    assert!(typed("phi3", r#""partial_rotary_factor":0.5"#).unwrap().rope_dim == 2);
    assert!(typed("phi3", r#""partial_rotary_factor":0.1"#).is_err());
}
