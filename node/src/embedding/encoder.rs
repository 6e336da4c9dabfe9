//! An encoder, whole: tokenizer, model, and what makes one vector or score of a model's vectors.

use super::{
    EncoderError,
    batch::{self, EncoderBatch, Tokenised},
    candle_models::EncoderNetwork,
    encoder_settings::EncoderSettings,
    family::EncoderFamily,
    folder::{EncoderFolder, fenced},
    head::{HeadModule, Scorer},
    pooling::{self, Pooling, pool},
};
use crate::text::tokenizer_guard;
use candle_core::{Result as Computed, Tensor};
use serde_json::Value;
use std::path::Path;
use tokenizers::Tokenizer;
use tsnode_protocol::{EncodeRefusal, Encoded, EncoderCard, EncoderInput, EncoderTask, Token, limits};

/// Bytes of a text that are read for each token that fits: a text has four or so. What is longer is refused, or cut, before a tokenizer
/// takes memory for it.
const BYTES_PER_TOKEN: usize = 64;
/// Modules of sentence-transformers in a row.
const MODULES: usize = 8;

/// A model that makes vectors or scores of texts.
pub struct Encoder {
    card: EncoderCard,
    tokenizer: Tokenizer,
    lowercase: bool,
    network: EncoderNetwork,
    heads: usize,
    vocabulary: usize,
    pad: u32,
    output: EncoderOutput,
}

enum EncoderOutput {
    Vector { ways: Vec<Pooling>, steps: Vec<HeadModule> },
    Score(Scorer),
}

impl Encoder {
    /// Reads a folder as Hugging Face and sentence-transformers have it.
    ///
    /// # Errors
    /// When a file is missing, damaged, larger than any such file, or of a kind that is not computed.
    pub fn open(path: &Path) -> Result<Self, EncoderError> {
        let mut folder = EncoderFolder::new(path);
        let config = EncoderSettings { json: folder.json("config.json")?, path: folder.at("config.json") };
        let family = EncoderFamily::of(&config)?;
        let tokenizer_file = folder.tokenizer()?;
        let broken = |error| EncoderError::Broken { path: folder.at("tokenizer.json"), error };
        let tokenizer = tokenizer_guard::read(&tokenizer_file).map_err(broken)?;
        let tensors = folder.weights("")?;
        let weights = folder.at("model.safetensors");
        let (network, sizes) = EncoderNetwork::load(family, &config, &tensors, &weights)?;
        let is_scorer = Scorer::is_in(&config);
        let (output, dimensions) = if is_scorer {
            (EncoderOutput::Score(Scorer::load(family, &config, &tensors, sizes.width, weights)?), 1)
        } else {
            vector(&mut folder, family, sizes.width)?
        };
        let limits_file = "sentence_bert_config.json";
        let limits = folder.json_if_there(limits_file)?.unwrap_or_default();
        let limits = EncoderSettings { json: limits, path: folder.at(limits_file) };
        let own = limits.number_or("max_seq_length", 1 << 20, Some(sizes.positions))?;
        let tokenizer_settings = folder.json_if_there("tokenizer_config.json")?.unwrap_or_default();
        // Where there is no limit, it is a number of thirty digits.
        let named = tokenizer_settings["model_max_length"].as_f64().filter(|most| (1.0..1e6).contains(most));
        let named = named.map_or(usize::MAX, |most| most as usize);
        let context = own.min(named).min(sizes.positions).min(batch::longest(sizes.heads));
        if dimensions > limits::ENCODER_DIMENSIONS as usize {
            return Err(config.unsupported(format!("its vectors have {dimensions} values, too many")));
        }
        let card = EncoderCard {
            id: folder.id(),
            name: folder.name(),
            task: if is_scorer { EncoderTask::Score } else { EncoderTask::Embed },
            dimensions: dimensions as u32,
            context: context as u32,
        };
        let encoder = Self {
            card,
            tokenizer,
            lowercase: limits.flag("do_lower_case"),
            network,
            heads: sizes.heads,
            vocabulary: sizes.vocabulary,
            pad: sizes.pad.min(sizes.vocabulary as u32 - 1),
            output,
        };
        encoder.try_out()?;
        Ok(encoder)
    }

    /// What others are told of it.
    #[must_use]
    pub fn card(&self) -> &EncoderCard {
        &self.card
    }

    /// Encodes a word: what does not fit together is found before anybody asks.
    fn try_out(&self) -> Result<(), EncoderError> {
        let input = match self.output {
            EncoderOutput::Vector { .. } => EncoderInput::Text("a".into()),
            EncoderOutput::Score(_) => EncoderInput::Pair("a".into(), "a".into()),
        };
        let refused = |error: EncodeRefusal| EncoderError::System(format!("{}: {error}", self.card.name));
        let tried = self.tokenise(&[input], Some(self.card.context)).and_then(|read| {
            let all: Vec<usize> = (0..read.len()).collect();
            self.compute(&read, &all)
        });
        let values = tried.map_err(refused)?;
        if values.iter().any(|encoded| encoded.values.len() != self.card.dimensions as usize) {
            return Err(EncoderError::System(format!("{}: its modules do not fit each other", self.card.name)));
        }
        Ok(())
    }

    /// The inputs' tokens.
    ///
    /// # Errors
    /// When one is longer than the model takes and may not be cut, or nothing that it reads.
    pub(super) fn tokenise(
        &self,
        inputs: &[EncoderInput],
        truncate: Option<u32>,
    ) -> Result<Vec<Tokenised>, EncodeRefusal> {
        let most = truncate.map(|most| most.min(self.card.context) as usize);
        let one = |(index, input): (usize, &EncoderInput)| {
            let refused = |why| EncodeRefusal::Input { index: index as u32, why };
            let read = self.tokenise_one(input, most).map_err(refused)?;
            if read.ids.len() > self.card.context as usize {
                let (tokens, context) = (read.ids.len() as u32, self.card.context);
                return Err(EncodeRefusal::TooLong { index: index as u32, tokens, context });
            }
            Ok(read)
        };
        inputs.iter().enumerate().map(one).collect()
    }

    fn tokenise_one(&self, input: &EncoderInput, most: Option<usize>) -> Result<Tokenised, String> {
        let is_pair = matches!(input, EncoderInput::Pair(..));
        if is_pair != matches!(self.output, EncoderOutput::Score(_)) {
            return Err("the model reads something else: texts for vectors, a query and a text for scores".into());
        }
        let (ids, types) = match input {
            EncoderInput::Text(text) => self.read(text, None, most)?,
            EncoderInput::Pair(query, text) => self.read(query, Some(text), most)?,
            EncoderInput::Tokens(tokens) => {
                // As vLLM does: of token ids the last are kept.
                let from = tokens.len() - most.unwrap_or(tokens.len()).min(tokens.len());
                let ids: Vec<u32> = tokens[from..].iter().map(|Token(id)| *id).collect();
                (ids.clone(), vec![0; ids.len()])
            }
        };
        if ids.is_empty() {
            return Err("it has no tokens".into());
        }
        match ids.iter().find(|id| **id as usize >= self.vocabulary) {
            Some(id) => Err(format!("token {id} is none of the model's, which has {}", self.vocabulary)),
            None => Ok(Tokenised { ids, types }),
        }
    }

    fn read(&self, text: &str, second: Option<&str>, most: Option<usize>) -> Result<(Vec<u32>, Vec<u32>), String> {
        let room = BYTES_PER_TOKEN * self.card.context as usize;
        let whole = |text: &str| {
            let is_cut = text.len() > room;
            if is_cut && most.is_none() {
                return Err(format!(
                    "it has {} bytes, and this model, which takes {} tokens, reads {room} at most; shorten it, or have it cut \
                     with truncate_prompt_tokens",
                    text.len(),
                    self.card.context
                ));
            }
            let end = (0..=room.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            let text = &text[..end];
            Ok(if self.lowercase { text.to_lowercase() } else { text.to_owned() })
        };
        let (text, second) = (whole(text)?, second.map(whole).transpose()?);
        tokenizer_guard::encode_whole(&self.tokenizer, (&text, second.as_deref()), most)
    }

    /// Which of these are computed together.
    pub(super) fn batches(&self, inputs: &[Tokenised]) -> Vec<Vec<usize>> {
        batch::together(inputs, self.heads)
    }

    /// Values of those inputs at `places`, in that order.
    ///
    /// # Errors
    /// When candle cannot compute them.
    pub(super) fn compute(&self, inputs: &[Tokenised], places: &[usize]) -> Result<Vec<Encoded>, EncodeRefusal> {
        let chosen: Vec<&Tokenised> = places.iter().map(|at| &inputs[*at]).collect();
        let values = fenced(|| self.forward(&chosen)?.to_vec2::<f32>());
        let values = values.map_err(|error| EncodeRefusal::Failed(format!("not computed: {error}")))?;
        let encoded = |(input, values): (&&Tokenised, Vec<f32>)| Encoded { tokens: input.ids.len() as u32, values };
        Ok(chosen.iter().zip(values).map(encoded).collect())
    }

    fn forward(&self, inputs: &[&Tokenised]) -> Computed<Tensor> {
        let batch = EncoderBatch::of(inputs, self.pad)?;
        let hidden = self.network.forward(&batch)?;
        match &self.output {
            EncoderOutput::Vector { ways, steps } => {
                steps.iter().try_fold(pool(ways, &hidden, &batch)?, |vectors, step| step.apply(&vectors))
            }
            EncoderOutput::Score(scorer) => scorer.score(&hidden, &batch),
        }
    }
}

/// What makes one vector of a model's, by the modules of sentence-transformers where they are named: else as these do for a model alone.
fn vector(
    folder: &mut EncoderFolder,
    family: EncoderFamily,
    width: usize,
) -> Result<(EncoderOutput, usize), EncoderError> {
    let usual = if family.is_causal() { Pooling::Last } else { Pooling::Mean };
    let (mut ways, mut steps, mut dimensions) = (vec![usual], Vec::new(), width);
    for (kind, name) in modules(folder)? {
        match kind.as_str() {
            "Transformer" => {}
            "Pooling" => {
                let file = format!("{name}/config.json");
                let settings = EncoderSettings { json: folder.json(&file)?, path: folder.at(&file) };
                ways = pooling::read(&settings)?;
                dimensions = ways.len() * width;
            }
            "Dense" => {
                let (step, output) = HeadModule::dense(folder, &name)?;
                steps.push(step);
                dimensions = output;
            }
            "Normalize" => steps.push(HeadModule::Normalise),
            _ => {
                let path = folder.at("modules.json");
                let what =
                    format!("its module {kind:?} is not computed: Transformer, Pooling, Dense and Normalize are");
                return Err(EncoderError::Unsupported { path, what });
            }
        }
    }
    Ok((EncoderOutput::Vector { ways, steps }, dimensions))
}

/// What `modules.json` names: each module's kind, and the folder that its settings are in.
fn modules(folder: &mut EncoderFolder) -> Result<Vec<(String, String)>, EncoderError> {
    let Some(json) = folder.json_if_there("modules.json")? else { return Ok(Vec::new()) };
    let broken = |error: &str| EncoderError::Broken { path: folder.at("modules.json"), error: error.into() };
    let all = json.as_array().filter(|all| all.len() <= MODULES).ok_or_else(|| broken("it is no short list"))?;
    let read = |module: &Value| {
        let kind: String = module["type"].as_str()?.rsplit('.').next()?.chars().take(40).collect();
        let name = module["path"].as_str().unwrap_or_default();
        // A folder inside this one.
        let is_plain = name.len() <= 64 && !name.contains(['/', '\\']) && !name.contains("..");
        is_plain.then(|| (kind, name.to_owned()))
    };
    let modules: Option<Vec<(String, String)>> = all.iter().map(read).collect();
    modules.ok_or_else(|| broken("a module has no type, or is elsewhere"))
}
