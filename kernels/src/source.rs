//! Where a model comes from: a folder, a file, or the program itself.

mod chosen;
mod error;
mod gguf_model;
mod layer_kinds;
mod parts;
mod small_files;

pub use chosen::Precision;
pub use error::SourceError;
pub use small_files::SMALL_FILES;

use crate::{
    config::ModelConfig,
    cpu::{Cpu, Simd},
    engine::Threads,
    load::{self, Largest, LoadProgress, LoadReport, StageMemory},
    models::{self, ModelStage, StageBytes, StageShare},
    pages::StateLayout,
    ranks::Rank,
    weights::{Checkpoint, Storage, WeightsError},
};
pub use parts::{PartFile, Start, start_of};
use small_files::{read_small, refuse_large};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tsnode_protocol::{
    LayerRange, ModelCard, ModelFile, ModelId, ModelShape, limits,
    weights::{ChunkHash, WeightsFile, WeightsForm, WeightsManifest},
};

/// Name of the model inside the program.
pub const EMBEDDED_NAME: &str = "gutenberg-tiny";

macro_rules! embedded {
    ($name:literal) => {
        include_bytes!(concat!("../models/gutenberg-tiny/", $name))
    };
}

/// A model that can be loaded, whole or in part.
pub struct ModelSource {
    card: ModelCard,
    config: ModelConfig,
    checkpoint: Checkpoint,
    files: BTreeMap<String, Vec<u8>>,
    manifest: Option<WeightsManifest>,
    notes: Vec<String>,
    precision: Precision,
    /// Whether it turns by what long sequences need.
    long: bool,
}

/// Layers of a model, ready for an engine.
pub struct StageModel {
    /// By rank.
    pub(crate) stages: Vec<Box<dyn ModelStage>>,
    pub(crate) shape: ModelShape,
    pub(crate) layers: LayerRange,
}

impl StageModel {
    /// What each rank's weights take as they lie in the file (bytes).
    #[must_use]
    pub fn rank_bytes(&self) -> Vec<u64> {
        let bytes = self.stages.iter().map(|stage| stage.bytes());
        bytes.map(|StageBytes { embed, layers, head, .. }| embed + layers + head).collect()
    }
}

impl ModelSource {
    /// The model inside the program.
    ///
    /// # Errors
    /// Only when the program was built with a broken model.
    pub fn embedded() -> Result<Self, SourceError> {
        static WEIGHTS: &[u8] = embedded!("model.safetensors");
        let small: [(&str, &[u8]); 5] = [
            ("config.json", embedded!("config.json")),
            ("tokenizer.json", embedded!("tokenizer.json")),
            ("tokenizer_config.json", embedded!("tokenizer_config.json")),
            ("generation_config.json", embedded!("generation_config.json")),
            ("special_tokens_map.json", embedded!("special_tokens_map.json")),
        ];
        let path = PathBuf::from(EMBEDDED_NAME);
        let files = small.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).collect();
        let checkpoint =
            Checkpoint::embedded(WEIGHTS).map_err(|error| SourceError::Weights { path: path.clone(), error })?;
        Self::assemble(EMBEDDED_NAME, &path, files, checkpoint)
    }

    /// The model in a folder, the one a safetensors file in a folder belongs to, or the one in a GGUF file.
    ///
    /// # Errors
    /// When a part is missing, broken, or of an architecture that is not written.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        if !path.exists() {
            return Err(SourceError::Absent(path.to_owned()));
        }
        if path.is_dir() {
            return match sole_gguf(path)? {
                Some(file) => Self::open_gguf(&file),
                None => Self::open_folder(path, path, Checkpoint::open),
            };
        }
        if gguf_model::is_gguf(path) {
            return Self::open_gguf(path);
        }
        if path.extension().is_some_and(|e| e == "safetensors") {
            let folder = path.parent().unwrap_or(Path::new("."));
            return Self::open_folder(path, folder, |_| Checkpoint::open_file(path));
        }
        Err(SourceError::NotAModel(path.to_owned()))
    }

    /// A model of which not all has to be there: files as long as they are to be, called whatever they are, the small files of
    /// safetensors in the folder. What is to be there before is said by [`start_of`], what before some layers are loaded by
    /// [`Self::places`]: layers of which a tensor is not there are not loaded. What is there is not looked at: other bytes make
    /// another model of it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_parts(folder: &Path, files: &[PartFile], form: WeightsForm) -> Result<Self, SourceError> {
        let mapped =
            || files.iter().map(|file| Storage::map_part(&file.path, &file.there)).collect::<Result<Vec<_>, _>>();
        match form {
            WeightsForm::Safetensors => Self::open_folder(folder, folder, |_| Checkpoint::open_all(mapped()?)),
            WeightsForm::Gguf => {
                let paths: Vec<&Path> = files.iter().map(|file| file.path.as_path()).collect();
                let opened = mapped().and_then(|maps| gguf_model::open_all(&paths, &maps));
                Self::assemble_gguf(folder, opened.map_err(SourceError::Gguf)?)
            }
        }
    }

    fn open_folder(
        path: &Path,
        folder: &Path,
        checkpoint: impl FnOnce(&Path) -> Result<Checkpoint, WeightsError>,
    ) -> Result<Self, SourceError> {
        let files = read_small(folder)?;
        let checkpoint = checkpoint(folder).map_err(|error| SourceError::Weights { path: path.to_owned(), error })?;
        let full = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = full.file_name().map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned());
        Self::assemble(&name, path, files, checkpoint)
    }

    fn open_gguf(path: &Path) -> Result<Self, SourceError> {
        Self::assemble_gguf(path, gguf_model::open(path).map_err(SourceError::Gguf)?)
    }

    fn assemble_gguf(path: &Path, opened: gguf_model::OpenedGguf) -> Result<Self, SourceError> {
        let gguf_model::OpenedGguf { checkpoint, files } = opened;
        for (name, bytes) in &files {
            refuse_large(&path.join(name), bytes.len() as u64)?;
        }
        Self::assemble(&gguf_model::model_name(path), path, files, checkpoint)
    }

    fn assemble(
        name: &str,
        path: &Path,
        files: BTreeMap<String, Vec<u8>>,
        checkpoint: Checkpoint,
    ) -> Result<Self, SourceError> {
        let config_json = files.get("config.json").map_or(&[][..], Vec::as_slice);
        let config =
            ModelConfig::parse(config_json).map_err(|error| SourceError::Config { path: path.to_owned(), error })?;
        let checkpoint = checkpoint.coded_by(config.coding);
        // Loading all layers once finds every missing or misshapen tensor now; nothing of the map is read for it.
        let whole = LayerRange { start: 0, end: config.blocks() as u32 };
        let stage = models::load(&config, &checkpoint, StageShare { layers: whole, rank: Rank::ALONE })
            .map_err(|error| SourceError::Weights { path: path.to_owned(), error })?;
        let shape = shape_of(&config, stage.as_ref());
        let listed = |(name, bytes): (&String, &Vec<u8>)| ModelFile {
            name: name.clone(),
            bytes: bytes.len() as u64,
            hash: *blake3::hash(bytes).as_bytes(),
        };
        let card = ModelCard {
            id: identify(&files, &checkpoint),
            name: name.chars().take(limits::TEXT_BYTES / 4).collect(),
            shape,
            files: files.iter().map(listed).collect(),
        };
        let coded = config.coding.map(|coding| chosen::coded_note(coding, stage.as_ref()));
        let notes = checkpoint.notes().iter().chain(&config.notes).cloned().chain(coded).collect();
        Ok(Self { card, config, checkpoint, files, manifest: None, notes, precision: Precision::Stored, long: false })
    }

    /// The same model under another name, as where its folder is called after a commit.
    #[must_use]
    pub fn called(mut self, name: &str) -> Self {
        self.card.name = name.chars().take(limits::TEXT_BYTES / 4).collect();
        self
    }

    /// The files that hold its weights, in their order: where they are, and their bytes.
    pub fn weights(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.checkpoint.files()
    }

    /// Whether all of its weights are there; else it is still fetched, and numbers that are not there are zeros wherever they need not be.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.checkpoint.is_whole()
    }

    /// The same model, named by all of its content: `roots` are BLAKE3 of the files of [`Self::weights`]. Until then its id is made of
    /// samples, which is good for one host alone.
    #[must_use]
    pub fn identified(mut self, roots: &[ChunkHash]) -> Self {
        let files =
            self.weights().zip(roots).map(|((_, bytes), root)| WeightsFile { bytes: bytes.len() as u64, root: *root });
        let form = if self.checkpoint.is_gguf() { WeightsForm::Gguf } else { WeightsForm::Safetensors };
        let manifest = WeightsManifest { form, files: files.collect() };
        let choice = self.checkpoint.choice();
        let id = manifest.id(&self.card.files, choice.as_ref());
        self.card.id = self.chosen(id);
        // Nobody else could tell which copies count, nor how it is computed where its files do not say it.
        let plain = choice.is_none() && self.card.id == id;
        self.manifest = Some(manifest).filter(|manifest| plain && manifest.check().is_ok());
        self
    }

    /// What its weights are, as other peers may have them from here; none before it is [`Self::identified`].
    #[must_use]
    pub fn manifest(&self) -> Option<&WeightsManifest> {
        self.manifest.as_ref()
    }

    /// What others are told of the model.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// What was decided where the files say several things, too little, or something that nobody reads: a line each, for
    /// whoever starts with the model.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Numbers in the matrices that a token passes in a layer, on average: multiply-adds of it.
    #[must_use]
    pub fn layer_numbers(&self) -> u64 {
        self.config.layer_numbers()
    }

    /// What of it no kernels for GPUs are written for, if it is known without asking one.
    #[must_use]
    pub fn gpu_lacks(&self) -> Option<&'static str> {
        self.config.gpu_lacks
    }

    /// The same of several GPUs that hold it together, beside mixtures of experts.
    pub(crate) fn gpus_lack(&self) -> Option<&'static str> {
        self.config.gpus_lack
    }

    /// What its layers keep of a sequence beside keys and values.
    pub(crate) fn states(&self) -> StateLayout {
        self.config.states()
    }

    /// Whether some of what a layer stands for in plans is a mixture of experts.
    pub(crate) fn has_experts(&self, layer: u32) -> bool {
        let layers = self.config.layers_of(LayerRange { start: layer, end: layer + 1 });
        let mixture = self.config.mixture.as_ref().and_then(|mixture| mixture.layers.get(layers));
        mixture.is_some_and(|layers| layers.contains(&true))
    }

    /// A small file's content.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// Memory that the weights of some layers take once they are loaded, all ranks together. Reads next to nothing of them.
    ///
    /// # Errors
    /// When there are more ranks than heads; when a tensor is missing or misshapen, which [`Self::open`] has found before.
    pub fn stage_memory(&self, layers: LayerRange, ranks: usize) -> Result<StageMemory, WeightsError> {
        Ok(StageMemory::of(load::each(&self.cut(&self.checkpoint, layers, ranks)?)))
    }

    /// Memory that the weights of some layers take on so many cards, all together (bytes).
    ///
    /// # Errors
    /// As [`Self::stage_memory`].
    pub fn gpu_bytes(&self, layers: LayerRange, cards: usize) -> Result<u64, WeightsError> {
        Ok(load::on_gpus(load::each(&self.cut(&self.checkpoint, layers, cards)?)))
    }

    /// Memory for computing steps with some layers, all but that for KV and weights (bytes). Buffers grow to the largest
    /// step there was and are kept.
    #[must_use]
    pub fn working_bytes(&self, layers: LayerRange, ranks: usize, largest: Largest) -> u64 {
        let (c, ranks) = (&self.config, ranks.max(1));
        // Cut up over ranks: queries, keys, values. Whole on each: the residual stream, its norm and a part's output, what
        // attention mixes. Of the MLP between its matrices few rows at a time, the half that gates cut up, the other whole.
        let widest = c.widest_heads() * c.head_dim;
        let cut = c.heads * widest + 2 * c.kv_heads * c.head_dim + c.state_numbers();
        let whole = 3 * c.hidden + c.heads * widest;
        let between = 1 + ranks + if ranks > 1 { 2 } else { 0 };
        // With a mixture also rows once more for each expert that they pass, what that made of them, and chances.
        let mixed = c.mixture.as_ref().map_or(0, |m| ranks * (2 * m.used * c.hidden + m.experts));
        let few = largest.tokens.min(models::ROWS_OF_MLP as u64) * (between * c.widest() + mixed) as u64;
        // Ranks lay their columns down on two tables, and logits side by side.
        let (tables, logits) = if ranks > 1 { (2 * c.hidden, 2) } else { (0, 1) };
        let head = if layers.end as usize == c.blocks() { logits * c.vocab + ranks * 2 * c.hidden } else { 0 };
        // Inputs of all layers, what a matrix made of them, and the same normed.
        let inputs = if layers.start == 0 { 3 * c.input_numbers() } else { 0 };
        4 * (largest.tokens * (cut + ranks * (whole + inputs) + tables) as u64 + few + largest.logits * head as u64)
    }

    /// What a stage of some layers reads of the files of [`Self::weights`]: for each its tensors' places.
    ///
    /// # Errors
    /// As [`Self::stage_memory`].
    pub fn places(&self, layers: LayerRange) -> Result<Vec<(usize, Range<usize>)>, WeightsError> {
        let (stages, places) = self.checkpoint.asked_for(|noting| self.cut(noting, layers, 1));
        stages.map(|_| places)
    }

    /// Some layers, as each of `ranks` has them.
    fn cut(
        &self,
        from: &Checkpoint,
        layers: LayerRange,
        ranks: usize,
    ) -> Result<Vec<Box<dyn ModelStage>>, WeightsError> {
        if let Some(heads) = self.config.not_shared(ranks) {
            return Err(WeightsError::Ranks { ranks, heads });
        }
        let load = |rank| models::load(&self.config, from, StageShare { layers, rank });
        Rank::all(ranks.max(1)).map(load).collect()
    }

    /// Some layers, ready for an engine of one rank, by one thread: [`Self::load_stage_by`].
    ///
    /// # Errors
    /// As there.
    pub fn load_stage(&self, layers: LayerRange) -> Result<StageModel, WeightsError> {
        self.load_stage_by(Threads::together(1), layers, &mut |_| ()).map(|(stage, _)| stage)
    }

    /// Some layers, for an engine on a card, by so many threads: [`Self::load_stage_for_gpus_by`].
    ///
    /// # Errors
    /// As there.
    pub fn load_stage_for_gpu(&self, layers: LayerRange, threads: usize) -> Result<StageModel, WeightsError> {
        self.load_stage_for_gpus(layers, Threads::together(threads))
    }

    /// The same for several cards, as many as there are ranks.
    ///
    /// # Errors
    /// As there.
    pub fn load_stage_for_gpus(&self, layers: LayerRange, threads: Threads) -> Result<StageModel, WeightsError> {
        self.load_stage_for_gpus_by(threads, layers, &mut |_| ()).map(|(stage, _)| stage)
    }

    /// Some layers, for an engine on as many cards as there are ranks: every number is looked at, by so many threads, and nothing
    /// is laid out for the processor. `progress` is told after each tensor.
    ///
    /// # Errors
    /// When a number is not finite or not there, there are more ranks than heads of keys and values, or the system gives no threads.
    pub fn load_stage_for_gpus_by(
        &self,
        threads: Threads,
        layers: LayerRange,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(StageModel, LoadReport), WeightsError> {
        self.check_whole(layers)?;
        self.laid_out(&self.checkpoint.needed(), (layers, threads), |stages, cpu| load::look(stages, cpu, progress))
    }

    /// Some layers, ready for an engine with so many ranks, by threads that end with it. Every number is looked at, the first
    /// time a stage has it. Dense weights stay where they lie; quantised ones are laid out for products, norms and biases
    /// copied. `progress` is told after each tensor.
    ///
    /// # Errors
    /// When a number is not finite or not there, there are more ranks than heads, or the system gives no threads; tensors missing or
    /// misshapen [`Self::open`] has found before.
    pub fn load_stage_by(
        &self,
        threads: Threads,
        layers: LayerRange,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(StageModel, LoadReport), WeightsError> {
        self.check_whole(layers)?;
        self.laid_out(&self.checkpoint.needed(), (layers, threads), |stages, cpu| load::run(stages, cpu, progress))
    }

    /// Layers to measure and compare steps with, as [`Self::load_stage_by`] has them: numbers that are not there are zeros.
    pub(crate) fn outlined(&self, layers: LayerRange, threads: Threads) -> Result<StageModel, WeightsError> {
        self.check_outlined(layers)?;
        let run = |stages: &[Box<dyn ModelStage>], cpu: &Cpu| load::run(stages, cpu, &mut |_| ());
        self.laid_out(&self.checkpoint, (layers, threads), run).map(|(stage, _)| stage)
    }

    /// The same as [`Self::load_stage_for_gpus_by`] has them.
    pub(crate) fn outlined_for_gpus(&self, layers: LayerRange, threads: Threads) -> Result<StageModel, WeightsError> {
        self.check_outlined(layers)?;
        let look = |stages: &[Box<dyn ModelStage>], cpu: &Cpu| load::look(stages, cpu, &mut |_| ());
        self.laid_out(&self.checkpoint, (layers, threads), look).map(|(stage, _)| stage)
    }

    /// Refuses a part of a model that one stage has to hold.
    fn check_whole(&self, layers: LayerRange) -> Result<(), WeightsError> {
        let shape = &self.card.shape;
        if shape.whole && layers != shape.all_layers() {
            return Err(WeightsError::Whole { layers, all: shape.layers });
        }
        Ok(())
    }

    /// The same of layers that nobody is served with: those with states are had there with the one that they are counted with.
    fn check_outlined(&self, layers: LayerRange) -> Result<(), WeightsError> {
        if self.config.delta_net.is_some() { Ok(()) } else { self.check_whole(layers) }
    }

    fn laid_out(
        &self,
        from: &Checkpoint,
        (layers, threads): (LayerRange, Threads),
        lay: impl FnOnce(&[Box<dyn ModelStage>], &Cpu) -> Result<LoadReport, WeightsError>,
    ) -> Result<(StageModel, LoadReport), WeightsError> {
        let stages = self.cut(from, layers, threads.ranks)?;
        let cpu = Cpu::new(Simd::detect(), threads.count.max(1)).map_err(WeightsError::Threads)?;
        let report = lay(&stages, &cpu)?;
        Ok((StageModel { stages, shape: self.card.shape, layers }, report))
    }
}

/// The shape that planning has, with what each part's weights take.
fn shape_of(config: &ModelConfig, stage: &dyn ModelStage) -> ModelShape {
    let bytes = stage.bytes();
    let by_layer = |bytes: u64| bytes.div_ceil(config.blocks() as u64);
    let mut shape = config.shape(by_layer(bytes.layers), bytes.embed, bytes.head);
    shape.experts.iter_mut().for_each(|experts| experts.bytes = by_layer(bytes.experts));
    shape
}

/// The GGUF model of a folder that is no Hugging Face folder.
fn sole_gguf(folder: &Path) -> Result<Option<PathBuf>, SourceError> {
    if folder.join(SMALL_FILES[0]).exists() {
        return Ok(None);
    }
    let mut models = gguf_model::models_in(folder);
    if models.len() > 1 {
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(SourceError::Several { folder: folder.to_owned(), models: models.iter().map(name).collect() });
    }
    Ok(models.pop())
}

/// What a model is called until all of it is hashed: a hash over configuration, tokenizer and a sample of the weights ([`Checkpoint::fingerprint`]).
fn identify(files: &BTreeMap<String, Vec<u8>>, checkpoint: &Checkpoint) -> ModelId {
    let mut hasher = blake3::Hasher::new();
    for name in &SMALL_FILES[..2] {
        let bytes = files.get(*name).map_or(&[][..], Vec::as_slice);
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }
    checkpoint.fingerprint(&mut hasher);
    short(&hasher)
}

fn short(hasher: &blake3::Hasher) -> ModelId {
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    ModelId(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gutenberg-tiny");
        for name in ["config.json", "tokenizer.json"] {
            std::fs::copy(from.join(name), folder.path().join(name)).unwrap();
        }
        let error = ModelSource::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("model.safetensors"), "{error}");
        let whole = std::fs::read(from.join("model.safetensors")).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
        let error = ModelSource::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("cut short"), "{error}");
    }

    #[test]
    fn another_shape_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gutenberg-tiny");
        for name in ["tokenizer.json", "model.safetensors"] {
            std::fs::copy(from.join(name), folder.path().join(name)).unwrap();
        }
        let config = std::fs::read_to_string(from.join("config.json")).unwrap();
        std::fs::write(folder.path().join("config.json"), config.replace("512", "640")).unwrap();
        let error = ModelSource::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("640") && error.contains("512"), "{error}");
        assert!(matches!(ModelSource::open(Path::new("/nowhere/at/all")), Err(SourceError::Absent(_))));
    }

    #[test]
    fn file_and_program_hold_the_same_model() {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gutenberg-tiny");
        let (embedded, folder) = (ModelSource::embedded().unwrap(), ModelSource::open(&from).unwrap());
        assert_eq!(embedded.card(), folder.card());
        let file = ModelSource::open(&from.join("model.safetensors")).unwrap();
        assert_eq!(file.card().id, folder.card().id);
    }
}
