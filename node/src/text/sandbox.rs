//! Chat templates are rendered in processes of their own, with an end to their memory and time.
//!
//! A template is a program by whoever announced the model. Its steps can be counted where it runs, but Jinja lets one step
//! double a text, so that thirty of them make more than any host has. A process that asks for too much dies alone. It stays
//! between conversations: asking it costs tens of microseconds, starting it milliseconds.
//!
//! Parent and child say JSON, one value a line: the template, which is answered as a rendering is; then conversations.

use super::{ChatTemplate, Conversation, TemplateText, TextError, clock};
use crate::platform::{self, give_way};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Duration, Instant, timeout, timeout_at};
use tsnode_protocol::limits;

/// The command that such a process is started with.
pub const VERB: &str = "render-template";
/// Address space of one (bytes), its program included. A rendering of the longest body that HTTP takes needs a quarter.
const MEMORY: u64 = 512 << 20;
/// Seconds of a processor that one may use; then it ends, and another is started for the next conversation. It is for one
/// whose parent died: a parent waits no longer than [`PATIENCE`].
const PROCESSOR: u64 = 60;
/// How long a parent waits for one rendering, and for its turn before.
const PATIENCE: Duration = Duration::from_secs(10);
/// Processes of one model at once.
const AT_ONCE: usize = 2;
/// Conversations from here on are long (bytes): one at a time, so that others do not wait for all of them, and a process that
/// rendered one ends after it, with the memory that it took.
const LONG: usize = 1 << 20;
/// The longest answer (bytes): templates put a few words around messages.
const ANSWER: u64 = 4 * limits::HTTP_BODY_BYTES as u64;

/// What a rendering says: the text, or why there is none.
type RenderedText = Result<String, String>;

/// Renders one template in processes of a program that is this one.
pub(super) struct TemplateSandbox {
    program: PathBuf,
    template: TemplateText,
    /// Held to take it or put it back.
    idle: Mutex<Option<SandboxProcess>>,
    turns: Semaphore,
    long: Semaphore,
}

/// Why a process did not answer.
enum Silent {
    /// It has ended, or says what is no answer.
    Ended,
    /// It takes too long.
    Late,
}

impl TemplateSandbox {
    pub fn new(program: &Path, template: TemplateText) -> Self {
        Self {
            program: program.into(),
            template,
            idle: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
            long: Semaphore::new(1),
        }
    }

    /// Starts a process, which reads the template.
    pub async fn check(&self) -> Result<(), TextError> {
        let worker = self.start(Instant::now() + PATIENCE).await?;
        self.keep(worker);
        Ok(())
    }

    pub async fn render(&self, conversation: &Conversation) -> Result<String, TextError> {
        let Ok(_turns) = timeout(PATIENCE, self.turn(conversation)).await else { return Err(TextError::Busy) };
        let end = Instant::now() + PATIENCE;
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = kept {
            match self.ask(worker, conversation, end).await {
                // It may have been killed since it was used last, or have used up its time: it is not the template's fault.
                Err(Silent::Ended) => {}
                said => return said.unwrap_or(Err(TextError::Unbounded)),
            }
        }
        let fresh = self.start(end).await?;
        self.ask(fresh, conversation, end).await.unwrap_or(Err(TextError::Unbounded))
    }

    /// A turn, and that of long conversations if this is one.
    async fn turn(&self, conversation: &Conversation) -> (Option<SemaphorePermit<'_>>, Option<SemaphorePermit<'_>>) {
        let long = if is_long(conversation) { self.long.acquire().await.ok() } else { None };
        (long, self.turns.acquire().await.ok())
    }

    async fn ask(
        &self,
        mut worker: SandboxProcess,
        conversation: &Conversation,
        end: Instant,
    ) -> Result<Result<String, TextError>, Silent> {
        let said = worker.ask(conversation, end).await?;
        if !is_long(conversation) {
            self.keep(worker);
        }
        Ok(said.map_err(TextError::Input))
    }

    async fn start(&self, end: Instant) -> Result<SandboxProcess, TextError> {
        let mut worker = SandboxProcess::start(&self.program)?;
        match worker.ask(&self.template, end).await {
            Ok(Ok(_)) => Ok(worker),
            Ok(Err(why)) => Err(TextError::template(why)),
            Err(_) => Err(TextError::Unbounded),
        }
    }

    /// One is enough between conversations: it may hold much of what it may have.
    fn keep(&self, worker: SandboxProcess) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.is_none() {
            *idle = Some(worker);
        }
    }
}

fn is_long(conversation: &Conversation) -> bool {
    conversation.bytes() >= LONG
}

/// A process that has read the template. It ends when this is dropped.
struct SandboxProcess {
    _child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl SandboxProcess {
    fn start(program: &Path) -> Result<Self, TextError> {
        let failed = |why: String| TextError::NoProcess { program: program.into(), why };
        let mut command = Command::new(program);
        command.arg(VERB).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        platform::of_its_own(&mut command);
        let mut child = command.kill_on_drop(true).spawn().map_err(|e| failed(e.to_string()))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no pipes".into()));
        };
        Ok(Self { _child: child, to, from: BufReader::new(from) })
    }

    async fn ask(&mut self, question: &impl Serialize, end: Instant) -> Result<RenderedText, Silent> {
        let exchanged = timeout_at(end, self.exchange(question)).await;
        exchanged.map_err(|_| Silent::Late)?.map_err(|_| Silent::Ended)
    }

    async fn exchange(&mut self, question: &impl Serialize) -> std::io::Result<RenderedText> {
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        self.to.write_all(&line).await?;
        line.clear();
        (&mut self.from).take(ANSWER).read_until(b'\n', &mut line).await?;
        Ok(serde_json::from_slice(&line)?)
    }
}

/// What such a process does, until nobody asks any more.
///
/// # Errors
/// When it cannot be given limits, or its pipes break.
pub fn run() -> std::io::Result<()> {
    // Not every system limits memory: there the parent's patience alone ends it.
    platform::confine(MEMORY, PROCESSOR)?;
    serve(std::io::stdin().lock(), std::io::stdout().lock())
}

fn serve(mut questions: impl BufRead, mut answers: impl Write) -> std::io::Result<()> {
    let Some(template) = hear(&mut questions)? else { return Ok(()) };
    let template = ChatTemplate::new(template, clock::here);
    say(&mut answers, &template.as_ref().map(|_| String::new()).map_err(String::clone))?;
    let Ok(template) = template else { return Ok(()) };
    while let Some(conversation) = hear::<Conversation>(&mut questions)? {
        say(&mut answers, &template.render(&conversation))?;
    }
    Ok(())
}

fn hear<T: DeserializeOwned>(questions: &mut impl BufRead) -> std::io::Result<Option<T>> {
    let mut line = Vec::new();
    questions.read_until(b'\n', &mut line)?;
    // It is the last for this process.
    if line.len() > LONG {
        give_way();
    }
    Ok(if line.is_empty() { None } else { Some(serde_json::from_slice(&line)?) })
}

fn say(answers: &mut impl Write, said: &RenderedText) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    answers.write_all(&line)?;
    answers.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a process says to these lines.
    fn answers(lines: &[serde_json::Value]) -> Vec<RenderedText> {
        let questions: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut said = Vec::new();
        serve(questions.as_bytes(), &mut said).unwrap();
        said.split_inclusive(|b| *b == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    fn template(text: &str) -> serde_json::Value {
        serde_json::json!({ "text": text, "special": { "bos_token": "<s>", "eos_token": "</s>" } })
    }

    #[test]
    fn a_template_is_read_once_and_rendered_for_every_conversation() {
        let says = |content: &str| serde_json::json!({ "messages": [{ "role": "user", "content": content }] });
        let text = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
        let said = answers(&[template(text), says("a\nb"), says("\u{e9}")]);
        assert_eq!(said, [Ok(String::new()), Ok("<s>a\nb</s>".into()), Ok("<s>\u{e9}</s>".into())]);
    }

    #[test]
    fn why_there_is_no_text_is_said() {
        let said = answers(&[template("{{ raise_exception('no') }}"), serde_json::json!({ "messages": [] })]);
        assert!(said[0].is_ok() && said[1].as_ref().unwrap_err().contains("no"));
        let said = answers(&[template("{% for"), serde_json::json!({ "messages": [] })]);
        assert!(matches!(&said[..], [Err(_)]), "{said:?}");
        assert!(answers(&[]).is_empty());
    }
}
