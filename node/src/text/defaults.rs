//! Sampling that a model asks for in its `generation_config.json`, each value for itself.

use serde_json::Value;
use tsnode_protocol::Token;

/// Characters of an unreadable value that its line repeats.
const SHOWN: usize = 40;

/// Sampling a model asks for where the client says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Whether it is meant to be sampled; greedy if not.
    pub do_sample: Option<bool>,
    /// Temperature; 0 is greedy.
    pub temperature: Option<f32>,
    /// Top-p.
    pub top_p: Option<f32>,
    /// Top-k; 0 is all.
    pub top_k: Option<u32>,
    /// Min-p.
    pub min_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
}

impl Defaults {
    /// Those of a `generation_config.json`. What cannot be read is as if it were not there, and `notes` gets a line about it.
    ///
    /// As in vLLM a temperature of 0 is greedy and a top-k of -1 means all. A text or, for top-k, a fraction (1.0 too) is what
    /// transformers and vLLM refuse to sample with. Ranges are theirs where requests can hold them.
    pub fn read(generation: &Value, notes: &mut Vec<String>) -> Self {
        if !generation.is_object() && !generation.is_null() {
            notes.push(format!("generation_config.json: {} is no object; it is not used", shown(generation)));
        }
        let mut file = DefaultsFile { values: generation, notes };
        Self {
            do_sample: file.read("do_sample", "true or false", Value::as_bool),
            temperature: file.number("temperature", 0.0, 100.0),
            top_p: file.number("top_p", 0.0, 1.0),
            top_k: file.read("top_k", "a whole number from -1 on", top_k),
            min_p: file.number("min_p", 0.0, 1.0),
            repetition_penalty: file.number("repetition_penalty", 0.001, 100.0),
        }
    }
}

/// `eos_token_id` of a file: a number or a list of them.
pub(super) fn ends(file: &str, config: &Value, notes: &mut Vec<String>) -> Vec<Token> {
    let value = &config["eos_token_id"];
    let many = match value {
        Value::Array(many) => &many[..],
        Value::Null => &[],
        one => std::slice::from_ref(one),
    };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).map(Token);
    let mut ends = Vec::new();
    for one in many {
        match id(one) {
            Some(end) => ends.push(end),
            None => notes.push(format!("{file}: eos_token_id {} is no token's id; it is not used", shown(one))),
        }
    }
    ends
}

fn top_k(value: &Value) -> Option<u32> {
    match value.as_i64()? {
        -1 => Some(0),
        k => u32::try_from(k).ok(),
    }
}

/// The file's values, and where to say what is wrong with them.
struct DefaultsFile<'v> {
    values: &'v Value,
    notes: &'v mut Vec<String>,
}

impl DefaultsFile<'_> {
    fn number(&mut self, key: &str, low: f32, high: f32) -> Option<f32> {
        let within = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| (low..=high).contains(x));
        self.read(key, &format!("a number from {low} to {high}"), within)
    }

    fn read<T>(&mut self, key: &str, wanted: &str, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        let value = self.values.get(key).filter(|value| !value.is_null())?;
        let found = read(value);
        if found.is_none() {
            let value = shown(value);
            self.notes.push(format!("generation_config.json: {key} {value} is not {wanted}; it is not used"));
        }
        found
    }
}

/// A value's beginning: whoever announced the model wrote it.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let cut = text.chars().count() > SHOWN;
    text.chars().take(SHOWN).chain(cut.then_some('…')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(generation: Value) -> (Defaults, Vec<String>) {
        let mut notes = Vec::new();
        (Defaults::read(&generation, &mut notes), notes)
    }

    #[test]
    fn one_odd_value_leaves_the_others() {
        let usual = json!({ "do_sample": true, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125,
            "repetition_penalty": 1.5 });
        let (whole, notes) = read(usual.clone());
        assert_eq!((whole.do_sample, whole.temperature, whole.top_p), (Some(true), Some(0.5), Some(0.25)));
        assert_eq!((whole.top_k, whole.min_p, whole.repetition_penalty), (Some(7), Some(0.125), Some(1.5)));
        assert_eq!(notes, [""; 0]);
        let odd = [json!("0.9"), json!([1]), json!({}), json!(-2), json!(1e300), json!("x".repeat(99))];
        for key in usual.as_object().unwrap().keys() {
            for odd in &odd {
                let mut file = usual.clone();
                file[key] = odd.clone();
                let (values, notes) = read(file.clone());
                assert_eq!(notes.len(), 1, "{file}: {notes:?}");
                assert!(notes[0].contains(key) && notes[0].chars().count() < 140, "{}", notes[0]);
                file[key] = Value::Null;
                assert_eq!((values, vec![]), read(file), "{key}: {odd}");
            }
        }
    }

    #[test]
    fn odd_values_are_what_vllm_makes_of_them() {
        let (greedy, notes) = read(json!({ "temperature": 0.0, "top_k": -1, "top_p": null }));
        assert_eq!((greedy.temperature, greedy.top_k, greedy.top_p, notes.len()), (Some(0.0), Some(0), None, 0));
        let (values, notes) = read(json!({ "temperature": 1, "top_k": 1.0, "top_p": "0.9" }));
        assert_eq!((values.temperature, values.top_k, values.top_p), (Some(1.0), None, None));
        let said = [
            "generation_config.json: top_p \"0.9\" is not a number from 0 to 1; it is not used",
            "generation_config.json: top_k 1.0 is not a whole number from -1 on; it is not used",
        ];
        assert_eq!(notes, said);
        assert_eq!(
            read(json!([1])),
            (Defaults::default(), vec!["generation_config.json: [1] is no object; it is not used".into()])
        );
        assert_eq!(read(Value::Null), (Defaults::default(), vec![]));
    }

    #[test]
    fn an_odd_end_leaves_the_others() {
        let mut notes = Vec::new();
        let file = json!({ "eos_token_id": [2, "3", 4.0, 5] });
        assert_eq!(ends("config.json", &file, &mut notes), [Token(2), Token(5)]);
        assert_eq!(notes[0], "config.json: eos_token_id \"3\" is no token's id; it is not used");
        assert_eq!(notes.len(), 2);
        assert_eq!(ends("config.json", &json!({ "eos_token_id": 7 }), &mut notes), [Token(7)]);
        assert_eq!((ends("config.json", &Value::Null, &mut notes), notes.len()), (vec![], 2));
    }
}
