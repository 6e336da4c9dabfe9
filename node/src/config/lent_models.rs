//! Which models a peer lends: one or several by flag, or with more said of each in the file.

use super::{ConfigError, ModelTable, SettingOrigin, Settings, values::ByteSize};
use crate::node::{ModelChoice, WantedModel};
use std::path::PathBuf;
use tsnode_protocol::{KvDtype, limits};

/// Between models that were named with one flag each: no path has it.
pub const BETWEEN: char = '\n';
/// Longest name of a model (characters).
const NAME_CHARS: usize = 100;

const KV_DTYPES: [(&str, KvDtype); 3] = [("f16", KvDtype::F16), ("bf16", KvDtype::Bf16), ("f32", KvDtype::F32)];

impl Settings {
    /// Elements of KV pages, where a model has no others.
    pub(super) fn kv_dtype(&self) -> Result<KvDtype, ConfigError> {
        self.choice("kv-dtype", &KV_DTYPES)
    }

    /// The models to lend; none for a gateway.
    pub(super) fn models(&self) -> Result<Vec<WantedModel>, ConfigError> {
        let named: Vec<&str> = self.text("model").split(BETWEEN).filter(|text| !text.is_empty()).collect();
        let in_file = |name| matches!(self.origin(name), Some(SettingOrigin::File(..)));
        let none = self.flag("no-model")?;
        if none && (!named.is_empty() || (!self.1.is_empty() && in_file("no-model"))) {
            return Err(self.wrong("no-model", "a model is named as well".into()));
        }
        if named.len() > limits::MODELS {
            let error = format!("{} models are more than the {} that a peer may lend", named.len(), limits::MODELS);
            return Err(ConfigError::Value { place: "--model".into(), error });
        }
        if !named.is_empty() && !self.1.is_empty() && in_file("model") {
            return Err(self.wrong("model", "the file has [[models]] as well; name this one among them".into()));
        }
        let mut wanted = match (none, &named[..], &self.1[..]) {
            (true, ..) => Vec::new(),
            (false, [], []) => vec![WantedModel::new(ModelChoice::Fallback, self.kv_dtype()?)],
            (false, [], tables) => tables.iter().map(|table| self.of_table(table)).collect::<Result<_, _>>()?,
            (false, named, _) => {
                let kv_dtype = self.kv_dtype()?;
                named.iter().map(|text| WantedModel::new(choice(text), kv_dtype)).collect()
            }
        };
        self.draft(&mut wanted)?;
        let kept = self.kept();
        for model in &mut wanted {
            let is_kept = kept.iter().any(|name| is_named(model, name));
            model.keep |= is_kept;
        }
        Ok(wanted)
    }

    /// Models that stay in memory, by the names that one is lent by or called: what is known once they are open.
    pub(super) fn kept_by_name(&self) -> Result<Vec<String>, ConfigError> {
        let models = self.models()?;
        let is_known = |name: &&str| models.iter().any(|model| is_named(model, name));
        Ok(self.kept().into_iter().filter(|name| !is_known(name)).map(ToOwned::to_owned).collect())
    }

    fn kept(&self) -> Vec<&str> {
        self.text("keep").split(BETWEEN).filter(|text| !text.is_empty()).collect()
    }

    /// What drafts, where it is said for all: for the only model. Who never speculates has no use for one.
    fn draft(&self, wanted: &mut [WantedModel]) -> Result<(), ConfigError> {
        let text = self.text("draft");
        if !text.is_empty() {
            match wanted {
                [] => return Err(self.wrong("draft", "there is no model to draft for".into())),
                [model] if model.draft.is_none() => model.draft = Some(text.into()),
                [_] => return Err(self.wrong("draft", "the model has a draft in its [[models]]; leave one".into())),
                _ => {
                    let error =
                        "several models are lent: say for which, with draft in its [[models]] of the settings file";
                    return Err(self.wrong("draft", error.into()));
                }
            }
        }
        if self.text("speculative-decoding") == "never" {
            wanted.iter_mut().for_each(|model| model.draft = None);
        }
        Ok(())
    }

    fn of_table(&self, table: &ModelTable) -> Result<WantedModel, ConfigError> {
        let Some(which) = text(table, "model")? else {
            let place = format!("{}:{}: [[models]]", table.path.display(), table.line);
            return Err(ConfigError::Value {
                place, error: "it names no model; write model = \"…\" below it".into()
            });
        };
        let memory =
            text(table, "memory")?.map(|memory| memory.parse::<ByteSize>().map_err(|e| wrong(table, "memory", e)));
        let dtype = |text: &str| {
            let found = KV_DTYPES.iter().find(|(name, _)| *name == text).map(|(_, dtype)| *dtype);
            found.ok_or_else(|| wrong(table, "kv-dtype", "choose one of f16, bf16, f32".into()))
        };
        let kv_dtype = match text(table, "kv-dtype")? {
            Some(text) => dtype(text)?,
            None => self.kv_dtype()?,
        };
        let keep = match text(table, "keep")? {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(wrong(table, "keep", "choose one of true, false".into())),
        };
        let name = text(table, "name")?;
        if name.is_some_and(|name| name.chars().count() > NAME_CHARS || name.chars().any(char::is_control)) {
            return Err(wrong(table, "name", format!("write at most {NAME_CHARS} letters, on one line")));
        }
        Ok(WantedModel {
            choice: choice(which),
            name: name.map(ToOwned::to_owned),
            memory_bytes: memory.transpose()?.map(|bytes| bytes.0),
            kv_dtype,
            draft: text(table, "draft")?.map(PathBuf::from),
            keep,
        })
    }
}

/// Whether a model was named so: as `--model` or its table names it.
fn is_named(model: &WantedModel, text: &str) -> bool {
    model.name.as_deref() == Some(text) || model.choice == choice(text)
}

fn choice(text: &str) -> ModelChoice {
    if text == "embedded" { ModelChoice::Embedded } else { ModelChoice::Path(text.into()) }
}

/// What a table says of that; nothing is no value.
fn text<'t>(table: &'t ModelTable, key: &'static str) -> Result<Option<&'t str>, ConfigError> {
    let Some((text, _)) = table.values.get(key) else { return Ok(None) };
    if text.trim().is_empty() {
        return Err(wrong(table, key, "nothing is said; leave it out, or give it a value".into()));
    }
    Ok(Some(text))
}

fn wrong(table: &ModelTable, key: &'static str, error: String) -> ConfigError {
    let (value, line) = table.values.get(key).map_or(("", table.line), |(value, line)| (value.as_str(), *line));
    let (file, value) = (table.path.display(), super::shown(key, value));
    ConfigError::Value { place: format!("{file}:{line}: {} = {value}", key.replace('-', "_")), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::gather;

    fn wanted(flags: &[(&str, &str)], file: &str) -> Result<Vec<WantedModel>, String> {
        gather(flags, &[], file).and_then(|settings| settings.node()).map(|node| node.models).map_err(|e| e.to_string())
    }

    fn path(text: &str) -> WantedModel {
        WantedModel::new(ModelChoice::Path(text.into()), KvDtype::F16)
    }

    const FILE: &str = "[[models]]\nmodel = \"a\"\nmemory = \"2GiB\"\n\n[[models]]\nmodel = \"embedded\"\nname = \"small\"\nkv_dtype = \"f32\"\ndraft = \"d\"\n";

    #[test]
    fn several_models_are_named_by_flags_or_in_the_file() {
        assert_eq!(wanted(&[("model", "a\nb")], ""), Ok(vec![path("a"), path("b")]));
        let first = WantedModel { memory_bytes: Some(2 << 30), ..path("a") };
        let second = WantedModel {
            name: Some("small".into()),
            kv_dtype: KvDtype::F32,
            draft: Some("d".into()),
            ..WantedModel::new(ModelChoice::Embedded, KvDtype::F16)
        };
        assert_eq!(wanted(&[], FILE), Ok(vec![first, second]));
        // Flags are over the file.
        assert_eq!(wanted(&[("model", "c")], FILE), Ok(vec![path("c")]));
        assert_eq!(wanted(&[("no-model", "true")], FILE), Ok(vec![]));
        let drafts = wanted(&[("speculative-decoding", "never")], FILE).unwrap();
        assert!(drafts.iter().all(|model| model.draft.is_none()));
    }

    #[test]
    fn what_is_wrong_with_a_model_of_the_file_is_named_with_its_line() {
        let refused = |file: &str| wanted(&[], file).unwrap_err();
        let typo = FILE.replace("kv_dtype", "kv_dtpye");
        assert!(
            refused(&typo).ends_with("config.toml:8: unknown key `kv_dtpye`; did you mean `kv_dtype`?"),
            "{}",
            refused(&typo)
        );
        let memory = FILE.replace("2GiB", "2");
        assert!(
            refused(&memory).contains("config.toml:3: memory = 2: ") && refused(&memory).contains("2GiB"),
            "{}",
            refused(&memory)
        );
        assert!(refused("[[models]]\nname = \"x\"\n").contains("config.toml:1: [[models]]: it names no model"));
        assert!(refused("\nmodels = \"x\"\n").contains(":2: `models` is a list of tables; write [[models]]"));
        assert!(refused("[[models]]\nmodel = [1]\n").contains(":2: `model` is a list or a table"));
        assert!(refused("[[models]]\nmodel = \"\"\n").contains(":2: model = \"\": nothing is said"));
        assert!(refused(&FILE.replace("f32", "f8")).contains(":8: kv_dtype = f8: choose one of"));
        let both = format!("model = \"x\"\n{FILE}");
        assert!(refused(&both).contains("the file has [[models]] as well"), "{}", refused(&both));
        let many = "[[models]]\nmodel = \"x\"\n".repeat(limits::MODELS + 1);
        assert!(refused(&many).contains("65 models are more than the 64"), "{}", refused(&many));
    }

    #[test]
    fn models_are_kept_by_what_they_are_named_or_called() {
        let kept = |flags: &[(&str, &str)], file: &str| {
            let node = gather(flags, &[], file).and_then(|settings| settings.node()).unwrap();
            (node.models.iter().map(|model| model.keep).collect::<Vec<_>>(), node.keep)
        };
        assert_eq!(kept(&[("model", "a\nb")], ""), (vec![false, false], vec![]));
        assert_eq!(kept(&[("model", "a\nb"), ("keep", "b")], ""), (vec![false, true], vec![]));
        // What none is named so may be what one is called.
        assert_eq!(kept(&[("model", "a\nb"), ("keep", "a\nc")], ""), (vec![true, false], vec!["c".to_owned()]));
        assert_eq!(kept(&[("keep", "small")], FILE), (vec![false, true], vec![]));
        let file = FILE.replace("draft = \"d\"", "keep = true");
        assert_eq!(kept(&[], &file), (vec![false, true], vec![]));
        let wrong = wanted(&[], &file.replace("true", "\"maybe\"")).unwrap_err();
        assert!(wrong.contains("keep = maybe: choose one of true, false"), "{wrong}");
    }

    #[test]
    fn a_draft_for_all_is_for_one() {
        let draft = |flags: &[(&str, &str)], file: &str| wanted(&[flags, &[("draft", "d")]].concat(), file);
        assert_eq!(draft(&[("model", "a")], "").unwrap()[0].draft, Some("d".into()));
        assert!(draft(&[("model", "a\nb")], "").unwrap_err().contains("--draft d: several models are lent"));
        assert!(draft(&[("no-model", "true")], "").unwrap_err().contains("no model to draft for"));
    }
}
