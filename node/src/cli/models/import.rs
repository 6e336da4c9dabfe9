//! `tsnode models import`: PyTorch pickles and safetensors of eight bits become safetensors that are served.

use crate::{
    cli::{
        exit::{Exit, ExitKind},
        is_set, json as json_flag, output, verb,
    },
    hardware::memory::Size,
    hub::name_of,
    import::{EightBit, ImportError, Imported, Pickles},
    plain,
};
use clap::{Arg, ArgMatches, Command, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::{Path, PathBuf};
use tsnode_kernels::source::ModelSource;

pub(super) fn command() -> Command {
    verb(
        "import",
        "Make safetensors of PyTorch pickles, of which nothing is run, or of safetensors in FP8",
        "tsnode models import ~/models/old-model --to ~/models/new-model",
    )
    .arg(
        Arg::new("from")
            .value_name("FILE|FOLDER")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .help("A folder with pytorch_model.bin, also in parts, or one such file; or one with safetensors in FP8"),
    )
    .arg(
        Arg::new("to")
            .long("to")
            .value_name("FOLDER")
            .value_parser(value_parser!(PathBuf))
            .help("Where the model goes [default: beside the pickles; of the cache, its repository's name here]"),
    )
    .arg(json_flag())
}

pub(super) fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let Some(from) = matches.get_one::<PathBuf>("from") else { return Ok(()) };
    let to = matches.get_one::<PathBuf>("to").cloned().unwrap_or_else(|| beside(from));
    // A reader that stumbles over what a pickle was made to say is an error of that pickle: it is said in one line, below.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let imported = import(from, &to);
    std::panic::set_hook(hook);
    let imported = imported.map_err(exit)?;
    let folder = imported.folder.display().to_string();
    if is_set(matches, "json") {
        let (tensors, bytes) = (imported.tensors, imported.bytes);
        return output::print_json(&json!({ "folder": folder, "tensors": tensors, "bytes": bytes }));
    }
    say!("{folder}: {} tensors, {}", imported.tensors, Size(imported.bytes));
    // What is missing for serving is better known now.
    match ModelSource::open(&imported.folder) {
        Ok(_) => say!("serve it with: tsnode join --model {folder}"),
        Err(error) => {
            note!("tsnode: note: it cannot be served as it is: {}", plain::without_numbers(&error.to_string()))
        }
    }
    Ok(())
}

fn import(from: &Path, to: &Path) -> Result<Imported, ImportError> {
    let eight_bit = EightBit::open(from)?;
    let pickles = if eight_bit.is_none() { Some(Pickles::open(from)?) } else { None };
    let total = eight_bit.as_ref().map(EightBit::bytes).or(pickles.as_ref().map(Pickles::bytes));
    let style = ProgressStyle::with_template("importing {bar:30} {binary_bytes} of {binary_total_bytes}, {eta} left");
    let bar =
        ProgressBar::new(total.unwrap_or_default()).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let imported = match (&eight_bit, &pickles) {
        (Some(eight_bit), _) => eight_bit.write(to, |bytes| bar.inc(bytes)),
        (None, Some(pickles)) => pickles.write(to, |bytes| bar.inc(bytes)),
        (None, None) => Err(ImportError::Nothing(from.to_owned())),
    };
    bar.finish_and_clear();
    imported
}

/// Where a model goes that is not told: the cache has only what comes from the hub.
fn beside(from: &Path) -> PathBuf {
    match name_of(from) {
        Some(name) => PathBuf::from(name.rsplit('/').next().unwrap_or(&name)),
        None if from.is_dir() => from.to_owned(),
        None => from.parent().unwrap_or(Path::new(".")).to_owned(),
    }
}

fn exit(error: ImportError) -> Exit {
    let kind = match &error {
        ImportError::Disk { .. } => ExitKind::Other,
        ImportError::There(_) => ExitKind::Usage,
        _ => ExitKind::Model,
    };
    Exit::new(kind, error.to_string())
}
