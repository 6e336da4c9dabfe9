//! What this machine may be used for, as its owner says: by settings at the start, and by a word to the peer while it runs.
//!
//! What is said while it runs holds at once, or as soon as models are lent anew, and is kept in the data folder for the next start:
//! above the settings file, below flags and variables. Nothing is kept that did not hold.

use crate::{data_plane::links::check_upload, plain, store::disk};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};
use tokio::sync::{mpsc, watch};
use tsnode_coordinator::lending::Hours;
use tsnode_protocol::BytesPerSecond;

/// What was said while a peer ran, in its data folder: a settings file of these settings.
pub const LIMITS_FILE: &str = "limits.toml";
/// The settings that are kept there.
pub const KEPT: [&str; 4] = [MEMORY, THREADS, UPLOAD, HOURS];
const MEMORY: &str = "memory";
const THREADS: &str = "threads";
const UPLOAD: &str = "upload-mbit";
const HOURS: &str = "hours";
/// What settings take, so that a peer starts with what it was told: amounts of memory (bytes), threads.
const MEMORIES: (u64, u64) = (MIB, 1 << 44);
const MOST_THREADS: usize = 1024;
const MIB: u64 = 1 << 20;

/// What the owner has allowed. Nothing where all is allowed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Limits {
    /// Memory for weights and KV (bytes).
    pub memory_bytes: Option<u64>,
    /// Of it for KV pages.
    pub kv_bytes: Option<u64>,
    /// Threads that compute.
    pub threads: usize,
    /// What leaves to all peers together (Mbit/s).
    pub upload_mbit: Option<f64>,
    /// Whether it carries between others that do not reach each other.
    pub relay: bool,
    /// Models that may be fetched where none is named (bytes on the disk); none at 0.
    pub model_budget_bytes: u64,
    /// Requests a minute of each client.
    pub requests_per_minute: Option<u32>,
}

impl Limits {
    fn upload(&self) -> Option<BytesPerSecond> {
        self.upload_mbit.map(|mbit| BytesPerSecond(mbit * 1e6 / 8.0))
    }
}

/// What limits are held against, as the peer was started.
#[derive(Clone, Debug, Default)]
pub struct LimitBounds {
    /// Flags and variables, as they were said: they hold again at the next start.
    pub fixed: BTreeMap<&'static str, String>,
    /// Threads that compute where no number is said.
    pub all_threads: usize,
    /// Each rank needs a thread.
    pub ranks: usize,
    /// Whether threads stay on processors that were named, which are dealt out at the start.
    pub has_cores: bool,
}

/// What is said of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LimitUpdate<T> {
    /// Nothing: it stays.
    #[default]
    Nothing,
    /// That there is none any more.
    Unlimited,
    /// That it is this.
    To(T),
}

impl<T> LimitUpdate<T> {
    fn over(self, before: Option<T>) -> Option<T> {
        match self {
            Self::Nothing => before,
            Self::Unlimited => None,
            Self::To(value) => Some(value),
        }
    }

    /// As the settings file has it, where anything is said: nothing in it is no limit.
    fn text(&self, shown: impl Fn(&T) -> String) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Unlimited => Some(String::new()),
            Self::To(value) => Some(shown(value)),
        }
    }
}

/// `null` is no limit; what is left out is [`LimitUpdate::Nothing`] where that is the default.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for LimitUpdate<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<T>::deserialize(from)?.map_or(Self::Unlimited, Self::To))
    }
}

/// What is to be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LimitChange {
    /// Memory for weights and KV (bytes).
    pub memory_bytes: LimitUpdate<u64>,
    /// Threads that compute.
    pub threads: LimitUpdate<usize>,
    /// What leaves to all peers together (Mbit/s).
    pub upload_mbit: LimitUpdate<f64>,
    /// Hours of lending.
    pub hours: LimitUpdate<Hours>,
}

/// Models are to be lent anew within these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relend {
    memory_bytes: LimitUpdate<u64>,
    threads: LimitUpdate<usize>,
    all_threads: usize,
}

impl Relend {
    /// Memory and threads, where they were these.
    #[must_use]
    pub fn over(&self, (memory_bytes, threads): (Option<u64>, usize)) -> (Option<u64>, usize) {
        (self.memory_bytes.over(memory_bytes), self.threads.over(Some(threads)).unwrap_or(self.all_threads))
    }
}

/// How far lending anew is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Relending {
    /// Nobody asked for it.
    #[default]
    None,
    /// Others are to go on with what runs here, and models are opened anew.
    UnderWay,
    /// It holds.
    Done {
        /// What.
        said: String,
    },
    /// It does not, and what held before does.
    Refused {
        /// Why.
        why: String,
    },
}

/// Why nothing is changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A value is none that could hold.
    #[error("{why}")]
    Value {
        /// Of which setting.
        setting: &'static str,
        /// Why.
        why: String,
    },
    /// Models are being lent anew.
    #[error("models are being lent anew for the last change: ask again when that is done, in a minute at most")]
    Busy,
    /// There is nothing to lend.
    #[error("this peer lends no model (it is a gateway, or is about to end), so memory and threads limit nothing")]
    LendsNothing,
    /// The disk does not take it.
    #[error("nothing was changed, since it cannot be kept: {path}: {error}")]
    NotKept {
        /// Where.
        path: String,
        /// Why.
        error: String,
    },
}

/// What holds, and how far the rest is.
#[derive(Clone, Debug, Default)]
struct State {
    limits: Limits,
    relending: Relending,
}

#[derive(Debug)]
struct Inner {
    bounds: LimitBounds,
    path: PathBuf,
    /// Writes a file whole.
    write: WriteFile,
    /// Held while a change is made to hold and is kept, so that what holds is what is kept: whoever waits for it waits for the disk.
    changes: Mutex<()>,
    /// Settings that were said while a peer ran here. Held for map operations only.
    kept: Mutex<BTreeMap<&'static str, String>>,
    state: watch::Sender<State>,
    upload: watch::Sender<Option<BytesPerSecond>>,
    relends: mpsc::Sender<Relend>,
}

type WriteFile = fn(&Path, &[u8]) -> io::Result<()>;

/// The owner's limits. Clones are the same.
#[derive(Clone, Debug)]
pub struct LimitsHandle(Arc<Inner>);

impl LimitsHandle {
    /// Of a peer with this data folder that was started with these; and what is to be lent anew, which is answered by [`Self::settled`].
    #[must_use]
    pub fn new(folder: &Path, limits: Limits, bounds: LimitBounds) -> (Self, mpsc::Receiver<Relend>) {
        Self::written_by(disk::write_whole, folder, limits, bounds)
    }

    fn written_by(
        write: WriteFile,
        folder: &Path,
        limits: Limits,
        bounds: LimitBounds,
    ) -> (Self, mpsc::Receiver<Relend>) {
        let (relends, to_relend) = mpsc::channel(1);
        let path = folder.join(LIMITS_FILE);
        let (kept, upload) = (Mutex::new(read(&path)), watch::Sender::new(limits.upload()));
        let state = watch::Sender::new(State { limits, relending: Relending::None });
        let changes = Mutex::default();
        (Self(Arc::new(Inner { bounds, path, write, changes, kept, state, upload, relends })), to_relend)
    }

    /// What holds now.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.0.state.borrow().limits.clone()
    }

    /// How far lending anew is.
    #[must_use]
    pub fn relending(&self) -> Relending {
        self.0.state.borrow().relending.clone()
    }

    /// What is kept for the next start.
    #[must_use]
    pub fn kept(&self) -> BTreeMap<&'static str, String> {
        lock(&self.0.kept).clone()
    }

    /// What goes before that at the next start, as it was said at this one.
    #[must_use]
    pub fn fixed(&self) -> &BTreeMap<&'static str, String> {
        &self.0.bounds.fixed
    }

    /// What may leave, whenever that changes.
    #[must_use]
    pub fn upload(&self) -> watch::Receiver<Option<BytesPerSecond>> {
        self.0.upload.subscribe()
    }

    /// Keeps a change and makes it hold; hours by whoever has them. A sentence for each thing that was said. It waits for the disk, and
    /// for changes before it: not for a thread on which tasks run.
    ///
    /// # Errors
    /// When it could not hold, or cannot be kept: then nothing is changed.
    pub fn change(
        &self,
        change: LimitChange,
        set_hours: impl FnOnce(Option<Hours>),
    ) -> Result<Vec<String>, LimitError> {
        let changing = lock(&self.0.changes);
        self.check(change)?;
        let LimitChange { memory_bytes, threads, upload_mbit, hours } = change;
        let lends = (memory_bytes, threads) != (LimitUpdate::Nothing, LimitUpdate::Nothing);
        let turn = if lends { Some(self.turn()?) } else { None };
        let mut now = vec![(HOURS, hours.text(Hours::to_string)), (UPLOAD, upload_mbit.text(f64::to_string))];
        // These are dealt out once.
        let waits = self.0.bounds.has_cores && threads != LimitUpdate::Nothing;
        if waits {
            now.push((THREADS, threads.text(usize::to_string)));
        }
        let unsure = self.keep(&changing, now)?;
        // How the change before this one has ended is not said of this one.
        self.0.state.send_modify(|state| {
            if state.relending != Relending::UnderWay {
                state.relending = Relending::None;
            }
        });
        let mut said = Vec::new();
        if upload_mbit != LimitUpdate::Nothing {
            self.0.state.send_modify(|state| state.limits.upload_mbit = upload_mbit.over(None));
            self.0.upload.send_replace(self.limits().upload());
            said.push(self.about_upload(upload_mbit));
        }
        match hours {
            LimitUpdate::Nothing => {}
            LimitUpdate::Unlimited => {
                set_hours(None);
                said.push("lends at all hours".into());
            }
            LimitUpdate::To(hours) => {
                set_hours(Some(hours));
                said.push(format!("lends from {hours}, by this machine's clock"));
            }
        }
        if waits {
            said.push("has other threads from its next start on, since they stay on the processors of --cores".into());
        }
        let threads = if waits { LimitUpdate::Nothing } else { threads };
        if let Some(turn) = turn
            && (memory_bytes, threads) != (LimitUpdate::Nothing, LimitUpdate::Nothing)
        {
            self.0.state.send_modify(|state| state.relending = Relending::UnderWay);
            turn.send(Relend { memory_bytes, threads, all_threads: self.0.bounds.all_threads });
            said.push("lends its models anew: others go on with what runs here, which takes up to a minute".into());
        }
        said.extend(self.next_start(change));
        said.extend(unsure);
        Ok(said)
    }

    /// Models are lent anew within these limits, or are not and as before. What holds is kept, for which it waits as [`Self::change`] does.
    pub fn settled(&self, relend: Relend, outcome: Result<String, String>) {
        let changing = lock(&self.0.changes);
        let relending = match outcome {
            Err(why) => Relending::Refused { why },
            Ok(said) => {
                let texts =
                    [(MEMORY, relend.memory_bytes.text(memory)), (THREADS, relend.threads.text(usize::to_string))];
                match self.keep(&changing, texts.into()) {
                    Ok(None) => Relending::Done { said },
                    Ok(Some(unsure)) => Relending::Done { said: format!("{said}; {unsure}") },
                    Err(LimitError::NotKept { path, error }) => {
                        Relending::Done { said: format!("{said}; until this peer ends, since {path}: {error}") }
                    }
                    Err(other) => Relending::Done { said: format!("{said}; until this peer ends: {other}") },
                }
            }
        };
        let holds = !matches!(relending, Relending::Refused { .. });
        self.0.state.send_modify(|state| {
            if holds {
                let Limits { memory_bytes, threads, .. } = state.limits;
                (state.limits.memory_bytes, state.limits.threads) = relend.over((memory_bytes, threads));
            }
            state.relending = relending;
        });
    }

    /// The turn to have models lent anew, which nobody else has.
    fn turn(&self) -> Result<mpsc::Permit<'_, Relend>, LimitError> {
        let turn = self.0.relends.try_reserve().map_err(|error| match error {
            mpsc::error::TrySendError::Full(()) => LimitError::Busy,
            mpsc::error::TrySendError::Closed(()) => LimitError::LendsNothing,
        })?;
        if self.relending() == Relending::UnderWay { Err(LimitError::Busy) } else { Ok(turn) }
    }

    fn check(&self, LimitChange { memory_bytes, threads, upload_mbit, .. }: LimitChange) -> Result<(), LimitError> {
        let wrong = |setting, why: String| Err(LimitError::Value { setting, why });
        if let LimitUpdate::To(bytes) = memory_bytes {
            let (least, most) = MEMORIES;
            if !(least..=most).contains(&bytes) {
                return wrong("memory_bytes", "write an amount of memory in bytes, from 1 MiB to 16 TiB".into());
            }
            if self.limits().kv_bytes.is_some_and(|kv| kv >= bytes) {
                return wrong("memory_bytes", "less than --kv-memory takes of it: start with a smaller one".into());
            }
        }
        if let LimitUpdate::To(mbit) = upload_mbit
            && let Err(why) = check_upload(mbit)
        {
            return wrong("upload_mbit", why);
        }
        let LimitBounds { all_threads, ranks, has_cores, .. } = self.0.bounds;
        let most = if has_cores { all_threads } else { MOST_THREADS };
        let count = match threads {
            LimitUpdate::Nothing => return Ok(()),
            LimitUpdate::Unlimited => all_threads,
            LimitUpdate::To(count) => count,
        };
        if !(ranks.max(1)..=most).contains(&count) {
            let why = format!("write a number of threads from {} to {most}", ranks.max(1));
            return wrong("threads", why);
        }
        Ok(())
    }

    fn about_upload(&self, said: LimitUpdate<f64>) -> String {
        match said {
            LimitUpdate::To(mbit) if self.limits().relay => format!(
                "sends at most {mbit} Mbit/s to other peers; what it carries between others (--relay) is not held to that"
            ),
            LimitUpdate::To(mbit) => format!("sends at most {mbit} Mbit/s to other peers"),
            LimitUpdate::Nothing | LimitUpdate::Unlimited => "sends to other peers as much as the link carries".into(),
        }
    }

    /// What the next start makes of it: it is kept, unless something goes before it.
    fn next_start(&self, LimitChange { memory_bytes, threads, upload_mbit, hours }: LimitChange) -> Vec<String> {
        let of = |setting: &'static str, is_said: bool| self.0.bounds.fixed.get(setting).filter(|_| is_said);
        let fixed = [
            of(MEMORY, memory_bytes != LimitUpdate::Nothing),
            of(THREADS, threads != LimitUpdate::Nothing),
            of(UPLOAD, upload_mbit != LimitUpdate::Nothing),
            of(HOURS, hours != LimitUpdate::Nothing),
        ];
        let again = |place: &String| format!("at the next start {place} holds again, unless it is left out");
        fixed.into_iter().flatten().map(again).collect()
    }

    /// Writes these beside what is kept, for whom nobody changes anything meanwhile. A sentence where they are there, and may not be
    /// after a power cut.
    fn keep(
        &self,
        _changing: &MutexGuard<'_, ()>,
        texts: Vec<(&'static str, Option<String>)>,
    ) -> Result<Option<String>, LimitError> {
        let said: Vec<_> = texts.into_iter().filter_map(|(setting, text)| Some((setting, text?))).collect();
        if said.is_empty() {
            return Ok(None);
        }
        let mut all = self.kept();
        all.extend(said);
        let written = (self.0.write)(&self.0.path, file(&all).as_bytes());
        let why = |error: &io::Error| (self.0.path.display().to_string(), plain::io_error(error));
        let unsure = match written {
            Ok(()) => None,
            Err(error) if disk::is_placed(&error) => {
                let (path, error) = why(&error);
                Some(format!("{path}: {error}"))
            }
            Err(error) => {
                let (path, error) = why(&error);
                return Err(LimitError::NotKept { path, error });
            }
        };
        *lock(&self.0.kept) = all;
        Ok(unsure)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As settings are written.
fn memory(bytes: &u64) -> String {
    if bytes.is_multiple_of(MIB) { format!("{}MiB", bytes / MIB) } else { format!("{bytes}B") }
}

/// The file that says these: values are numbers, units and times of day, which nothing in a TOML string changes.
fn file(kept: &BTreeMap<&'static str, String>) -> String {
    let head = "# Limits that were set while a peer ran: tsnode limits. They go before the settings file.\n".to_owned();
    kept.iter().fold(head, |file, (setting, text)| file + &format!("{} = \"{text}\"\n", setting.replace('-', "_")))
}

/// What a file says that was found good at the start, also where its owner has written it; nothing where there is none.
fn read(path: &Path) -> BTreeMap<&'static str, String> {
    let table = fs::read_to_string(path).ok().and_then(|text| text.parse::<toml::Table>().ok()).unwrap_or_default();
    let said = |setting: &'static str| {
        let value = table.get(setting).or_else(|| table.get(&setting.replace('-', "_")))?;
        Some((setting, written(value)?))
    };
    KEPT.into_iter().filter_map(said).collect()
}

/// A value as settings files are read.
fn written(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
