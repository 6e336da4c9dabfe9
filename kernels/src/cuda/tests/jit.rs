//! Kernels compiled for a GPU: the choice on a GPU that is made up, the compiler itself where NVRTC is found, and both
//! together on the GPU `TSNODE_TEST_CARD`.

use super::{Lcg, RunOn, here, machines, poisoned, read, with};
use crate::cuda::{
    GpuInfo, driver_api,
    jit::{
        self, CacheState, GpuIdentity, Image, KernelCache, KernelCompiler, Kernels, LaunchOverlap, Loads, NotCompiled,
        Nvrtc, cache,
        sources::{self, FILES, KernelFile},
        trial::{self, DIM, GROUP, HEADS, TILE_ROWS, TrialWork},
    },
    libraries::Libraries,
    machine::{Arg, GpuError, Launch, Machine, PeerGpu, Product, Queue, Recorded, Rectangle},
    ops::{GpuRows, Kind, Ops, Out},
    weights::{Form, GpuMatrix},
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A GPU that computes nothing: it takes its time for what is slow, and leaves ones, or twos where it is told to differ.
#[derive(Debug)]
struct Fake {
    identity: GpuIdentity,
    /// Files whose machine code is slower than their PTX; that of others is faster.
    slower: BTreeSet<&'static str>,
    differs: Option<&'static str>,
    refuses: Option<&'static str>,
    overlap: FakeOverlap,
    /// Launches until the GPU is lost.
    left: AtomicUsize,
    at: AtomicU64,
    state: Mutex<FakeState>,
}

/// What launches are that overlap. Norms take their time where they are to be faster.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FakeOverlap {
    Cannot,
    Faster,
    Slower,
    Differ,
    Fail,
}

#[derive(Debug, Default)]
struct FakeState {
    loaded: BTreeMap<&'static str, Vec<u8>>,
    compiled: BTreeSet<&'static str>,
    leaves: u8,
    overlaps: bool,
}

impl Fake {
    fn new() -> Self {
        let (name, driver) = ("a GPU".to_owned(), "550.54".to_owned());
        Self {
            identity: GpuIdentity { name, processors: 2, sm: 90, cuda: (12, 4), driver },
            slower: BTreeSet::new(),
            differs: None,
            refuses: None,
            overlap: FakeOverlap::Cannot,
            left: AtomicUsize::new(usize::MAX),
            at: AtomicU64::new(1 << 20),
            state: Mutex::default(),
        }
    }

    /// Files that run as they were compiled for the GPU, with what was loaded of them.
    fn compiled(&self) -> Vec<(&'static str, String)> {
        let state = self.state.lock().unwrap();
        assert!(state.compiled.iter().eq(state.loaded.keys()), "what is not used stays loaded: {state:?}");
        state.loaded.iter().map(|(file, cubin)| (*file, String::from_utf8(cubin.clone()).unwrap())).collect()
    }
}

impl Loads for Fake {
    fn identity(&self) -> Result<GpuIdentity, GpuError> {
        Ok(self.identity.clone())
    }
    fn load(&self, file: &'static str, cubin: &[u8]) -> Result<(), GpuError> {
        if self.refuses == Some(file) {
            return Err(GpuError::Failed { call: "compiling kernels", answer: "no binary for this GPU".into() });
        }
        self.state.lock().unwrap().loaded.insert(file, cubin.to_vec());
        Ok(())
    }
    fn turn(&self, file: &'static str, image: Image) {
        let mut state = self.state.lock().unwrap();
        if image == Image::Compiled {
            state.compiled.insert(file)
        } else {
            state.compiled.remove(file)
        };
    }
    fn put_away(&self, file: &'static str) {
        self.turn(file, Image::Ahead);
        self.state.lock().unwrap().loaded.remove(file);
    }
    fn overlap(&self, on: bool) -> Result<(), String> {
        if on && self.overlap == FakeOverlap::Cannot {
            return Err("the GPU is made up".into());
        }
        self.state.lock().unwrap().overlaps = on;
        Ok(())
    }
}

impl Machine for Fake {
    fn processors(&self) -> usize {
        self.identity.processors
    }
    fn about(&self) -> GpuInfo {
        GpuInfo::default()
    }
    fn free_bytes(&self) -> Result<usize, GpuError> {
        Ok(1 << 30)
    }
    fn take(&self, bytes: usize) -> Result<u64, GpuError> {
        Ok(self.at.fetch_add(bytes as u64, Ordering::Relaxed))
    }
    fn give(&self, _: u64, _: usize) {}
    fn upload(&self, _: Queue, _: u64, _: &[u8]) -> Result<(), GpuError> {
        Ok(())
    }
    fn download(&self, _: Queue, _: u64, out: &mut [u8]) -> Result<(), GpuError> {
        let leaves = f32::from(self.state.lock().unwrap().leaves).to_le_bytes();
        out.chunks_exact_mut(4).for_each(|place| place.copy_from_slice(&leaves));
        Ok(())
    }
    fn copy(&self, _: u64, _: u64, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
    fn launch(&self, _: Queue, launch: Launch, _: &[Arg]) -> Result<(), GpuError> {
        let more = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        more.map_err(|_| GpuError::Failed { call: "anything", answer: "the GPU is lost".into() })?;
        let overlap = self.state.lock().unwrap().overlaps.then_some(self.overlap);
        if overlap == Some(FakeOverlap::Fail) {
            return Err(GpuError::Failed { call: "a launch", answer: "not so".into() });
        }
        let compiled = self.state.lock().unwrap().compiled.contains(launch.module);
        let differs = compiled && self.differs == Some(launch.module);
        self.state.lock().unwrap().leaves = match overlap {
            Some(FakeOverlap::Differ) => 3,
            _ if differs => 2,
            _ => 1,
        };
        let waits_long = launch.module == "rows" && overlap.is_none() && self.overlap == FakeOverlap::Faster;
        if waits_long || overlap == Some(FakeOverlap::Slower) {
            std::thread::sleep(Duration::from_micros(300));
        }
        if trial::FILES.contains(&launch.module) && compiled == self.slower.contains(launch.module) {
            std::thread::sleep(Duration::from_micros(300));
        }
        Ok(())
    }
    fn product(&self, _: Product, _: u64, _: u64, _: u64) -> Result<bool, GpuError> {
        Ok(false)
    }
    fn mark(&self, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
    fn wait_for(&self, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
    fn finish(&self) -> Result<(), GpuError> {
        Ok(())
    }
    fn record(&self) -> Result<bool, GpuError> {
        Ok(false)
    }
    fn recorded(&self) -> Result<Recorded, GpuError> {
        Ok(Recorded(0))
    }
    fn replay(&self, _: Recorded) -> Result<(), GpuError> {
        Ok(())
    }
    fn forget(&self, _: Recorded) {}
    fn forget_recorded(&self) {}
    fn follow(&self, _: PeerGpu) -> Result<(), GpuError> {
        Ok(())
    }
    fn reaches(&self, _: PeerGpu) -> bool {
        false
    }
    fn offer(&self) -> Result<PeerGpu, GpuError> {
        Err(GpuError::Unsupported("other GPUs".into()))
    }
    fn fetch(&self, _: PeerGpu, _: Rectangle) -> Result<(), GpuError> {
        Err(GpuError::Unsupported("other GPUs".into()))
    }
}

/// A compiler that counts.
struct CountingCompiler {
    version: (i32, i32),
    compiled: AtomicUsize,
    panics: bool,
}

impl CountingCompiler {
    fn new() -> Self {
        Self { version: (12, 2), compiled: AtomicUsize::new(0), panics: false }
    }

    fn count(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }
}

impl KernelCompiler for CountingCompiler {
    fn version(&self) -> Result<(i32, i32), NotCompiled> {
        Ok(self.version)
    }
    fn knows(&self, sm: u32) -> Result<bool, NotCompiled> {
        Ok(sm <= 90)
    }
    fn compile(&self, file: &KernelFile, sm: u32) -> Result<Vec<u8>, NotCompiled> {
        assert!(!self.panics, "a symbol that the library lacks");
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(format!("{} for sm_{sm} by {:?}", file.name, self.version).into_bytes())
    }
}

/// A choice, and the files that run as they were compiled for the GPU.
fn choose(gpu: Fake, compiler: &CountingCompiler, folder: &Path) -> (Kernels, Vec<(&'static str, String)>) {
    let gpu = Arc::new(gpu);
    let chosen = jit::choose(&(gpu.clone() as Arc<dyn Loads>), Ok(compiler), &KernelCache::at(folder));
    let compiled = gpu.compiled();
    (chosen, compiled)
}

fn kept(kernels: &Kernels) -> &CacheState {
    match kernels {
        Kernels::Timed(timed) => &timed.kept,
        Kernels::Ahead(why) => panic!("nothing was compiled: {why}"),
    }
}

fn why(kernels: &Kernels) -> &NotCompiled {
    match kernels {
        Kernels::Ahead(why) => why,
        Kernels::Timed(timed) => panic!("{timed}"),
    }
}

fn half_slower() -> Fake {
    Fake { slower: BTreeSet::from(["attend", "chunk"]), ..Fake::new() }
}

#[test]
fn of_each_file_the_faster_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let (chosen, compiled) = choose(half_slower(), &CountingCompiler::new(), folder.path());
    let code = |file| (file, format!("{file} for sm_90 by (12, 2)"));
    assert_eq!(compiled, [code("few"), code("many"), code("mmq")]);
    let said = chosen.to_string();
    let (ours, theirs) = said.split_once("; PTX elsewhere, faster in ").unwrap();
    assert!(ours.starts_with("NVRTC 12.2 for sm_90: few (in 0.") && ours.contains(", many (in 0."), "{said}");
    assert!(theirs.starts_with("attend (in ") && theirs.contains(", chunk (in "), "{said}");

    let none = Fake { slower: BTreeSet::from(trial::FILES), ..Fake::new() };
    let (chosen, compiled) = choose(none, &CountingCompiler::new(), tempfile::tempdir().unwrap().path());
    assert_eq!(compiled, []);
    assert!(chosen.to_string().starts_with("PTX, faster than NVRTC 12.2 for sm_90: attend (in "), "{chosen}");
}

fn overlap(kernels: &Kernels) -> &LaunchOverlap {
    match kernels {
        Kernels::Timed(timed) => &timed.overlap,
        Kernels::Ahead(why) => panic!("nothing was compiled: {why}"),
    }
}

#[test]
fn launches_overlap_where_that_is_faster_and_all_that_wait_are_compiled_then() {
    let (folder, compiler) = (tempfile::tempdir().unwrap(), CountingCompiler::new());
    let gpu = || Fake { overlap: FakeOverlap::Faster, ..half_slower() };
    let (first, compiled) = choose(gpu(), &compiler, folder.path());
    let files: Vec<_> = compiled.iter().map(|(file, _)| *file).collect();
    assert_eq!(files, ["few", "many", "mmq", "rows"], "{first}");
    assert!(overlap(&first).is_used() && first.to_string().contains("; launches of few, mmq, rows overlap (in 0."));
    let (second, again) = choose(gpu(), &compiler, folder.path());
    assert_eq!((kept(&second), compiler.count(), again), (&CacheState::Found, 6, compiled));
    assert_eq!(overlap(&second), overlap(&first));
    // What was kept is of no use to a GPU that cannot any more.
    let (third, compiled) = choose(half_slower(), &compiler, folder.path());
    assert_eq!((kept(&third), compiled.len(), compiler.count()), (&CacheState::Written, 3, 11), "{third}");
}

#[test]
fn launches_do_not_overlap_where_they_cannot_differ_fail_or_are_slower() {
    let ways = [
        (FakeOverlap::Cannot, "the GPU is made up"),
        (FakeOverlap::Slower, "they take "),
        (FakeOverlap::Differ, "they leave other numbers"),
        (FakeOverlap::Fail, "they fail, the GPU fails at a launch: not so"),
    ];
    for (way, why) in ways {
        let (folder, compiler) = (tempfile::tempdir().unwrap(), CountingCompiler::new());
        let gpu = || Fake { overlap: way, ..half_slower() };
        let (chosen, compiled) = choose(gpu(), &compiler, folder.path());
        let files: Vec<_> = compiled.iter().map(|(file, _)| *file).collect();
        assert_eq!(files, ["few", "many", "mmq"], "{way:?}");
        assert!(chosen.to_string().contains(&format!("; launches do not overlap: {why}")), "{chosen}");
        let (again, _) = choose(gpu(), &compiler, folder.path());
        assert_eq!((kept(&again), again.to_string()), (&CacheState::Found, chosen.to_string()), "{way:?}");
    }
}

#[test]
fn what_was_chosen_is_found_by_the_next_start() {
    let (folder, compiler) = (tempfile::tempdir().unwrap(), CountingCompiler::new());
    let (first, compiled) = choose(half_slower(), &compiler, folder.path());
    assert_eq!((kept(&first), compiler.count()), (&CacheState::Written, trial::FILES.len()));
    // That machine code would be the slower by now is not looked at.
    let other_way = Fake { slower: BTreeSet::from(["few", "many", "mmq"]), ..Fake::new() };
    let (second, again) = choose(other_way, &compiler, folder.path());
    assert_eq!((kept(&second), compiler.count(), again), (&CacheState::Found, trial::FILES.len(), compiled));
    let times = |kernels: &Kernels| matches!(kernels, Kernels::Timed(timed) if !timed.files.is_empty());
    assert!(times(&second) && first.to_string() == second.to_string(), "{first} {second}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a draft was left");
}

#[test]
fn another_gpu_driver_or_compiler_chooses_anew() {
    let folder = tempfile::tempdir().unwrap();
    let changes: [fn(&mut Fake, &mut CountingCompiler); 7] = [
        |_, _| (),
        |gpu, _| gpu.identity.driver = "550.90".into(),
        |gpu, _| gpu.identity.cuda = (12, 6),
        |gpu, _| gpu.identity.name = "another".into(),
        |gpu, _| gpu.identity.processors = 3,
        |gpu, _| gpu.identity.sm = 80,
        |_, compiler| compiler.version = (12, 3),
    ];
    for (i, change) in changes.iter().enumerate() {
        let (mut gpu, mut compiler) = (Fake::new(), CountingCompiler::new());
        change(&mut gpu, &mut compiler);
        let sm = gpu.identity.sm;
        let (chosen, compiled) = choose(gpu, &compiler, folder.path());
        assert_eq!((kept(&chosen), compiler.count()), (&CacheState::Written, trial::FILES.len()), "{i}");
        let code = format!("few for sm_{sm} by {:?}", compiler.version);
        assert!(compiled.contains(&("few", code)), "{i}: {compiled:?}");
    }
    // One file for each kind of GPU, whatever its driver was: two of other names or sizes, one of another architecture.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
}

/// The only file of a folder.
fn only_file(folder: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(folder).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

#[test]
fn what_was_kept_and_is_not_whole_is_compiled_anew() {
    let (folder, compiler) = (tempfile::tempdir().unwrap(), CountingCompiler::new());
    let (_, compiled) = choose(half_slower(), &compiler, folder.path());
    let (file, identity) = (only_file(folder.path()), Fake::new().identity);
    let (whole, key) = (std::fs::read(&file).unwrap(), cache::key(&identity, compiler.version));
    let read = || KernelCache::at(folder.path()).read(&identity, &key);
    let mut large = read().unwrap();
    for i in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[i] ^= 0x10;
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(read(), None, "byte {i}");
        std::fs::write(&file, &whole[..i]).unwrap();
        assert_eq!(read(), None, "cut at {i}");
    }
    // What is somebody else's, too large to be read, or no file.
    std::fs::write(&file, "not ours").unwrap();
    assert_eq!(read(), None);
    large.cubins[0].1.resize(cache::LARGEST as usize, 0);
    KernelCache::at(folder.path()).write(&identity, &key, &large).unwrap();
    assert_eq!(read(), None);
    assert_eq!(compiler.count(), trial::FILES.len());
    let (chosen, again) = choose(half_slower(), &compiler, folder.path());
    assert_eq!((kept(&chosen), compiler.count(), again), (&CacheState::Written, 2 * trial::FILES.len(), compiled));
    assert!(read().is_some());
}

/// A checksum that is right says nothing of what it is the sum of.
#[test]
fn what_was_kept_with_its_checksum_and_makes_no_sense_is_as_good_as_none() {
    let (folder, compiler) = (tempfile::tempdir().unwrap(), CountingCompiler::new());
    choose(half_slower(), &compiler, folder.path());
    let (file, identity) = (only_file(folder.path()), Fake::new().identity);
    let (whole, key) = (std::fs::read(&file).unwrap(), cache::key(&identity, compiler.version));
    let whole = &whole[..whole.len() - blake3::OUT_LEN];
    let read = |bytes: &[u8]| {
        std::fs::write(&file, [bytes, blake3::hash(bytes).as_bytes()].concat()).unwrap();
        KernelCache::at(folder.path()).read(&identity, &key)
    };
    assert!(read(whole).is_some());
    for i in 0..whole.len() {
        assert_eq!(read(&whole[..i]), None, "cut at {i}");
    }
    let mut huge = whole.to_vec();
    // The length of the first file's machine code, behind the key, two times, why launches do not overlap and how long that is, a
    // name and two times.
    let LaunchOverlap::Not(why) = read(whole).unwrap().overlap else { panic!("launches overlap") };
    let at = b"tsnode kernels 2\n".len() + key.len() + 24 + why.len() + 1 + trial::FILES[0].len() + 16;
    huge[at..at + 8].fill(0xff);
    assert_eq!(read(&huge), None);
}

#[test]
fn what_cannot_be_kept_is_used_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    std::fs::write(&taken, "a file, and no folder").unwrap();
    let (chosen, compiled) = choose(Fake::new(), &CountingCompiler::new(), &taken);
    assert!(matches!(kept(&chosen), CacheState::Not(_)) && chosen.to_string().contains("; not kept: "), "{chosen}");
    assert_eq!(compiled.len(), trial::FILES.len());
}

#[test]
fn whatever_fails_leaves_ptx_and_one_reason() {
    let folder = tempfile::tempdir().unwrap();
    let tried = |gpu: Fake, compiler: CountingCompiler, sentence: &str| {
        let (chosen, compiled) = choose(gpu, &compiler, folder.path());
        assert_eq!(compiled, [], "{sentence}");
        assert_eq!(why(&chosen).to_string(), sentence);
        assert_eq!(chosen.to_string(), format!("PTX, compiled ahead; {sentence}"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{sentence}: it was kept");
        compiler.count()
    };
    let (gpu, compiler) = (Fake::new, CountingCompiler::new);
    let newer = CountingCompiler { version: (13, 0), ..compiler() };
    let sentence = "NVRTC 13.0 is newer than the driver, which is of CUDA 12.4";
    assert_eq!(tried(gpu(), newer, sentence), 0);
    let mut unknown = gpu();
    unknown.identity.sm = 120;
    assert_eq!(tried(unknown, compiler(), "NVRTC 12.2 does not know sm_120"), 0);
    let sentence =
        "the driver does not take few as it was compiled: the GPU fails at compiling kernels: no binary for this GPU";
    // Those after it are not compiled in vain.
    assert_eq!(tried(Fake { refuses: Some("few"), ..gpu() }, compiler(), sentence), 3);
    let sentence = "many as it was compiled gives other numbers than its PTX";
    tried(Fake { differs: Some("many"), ..gpu() }, compiler(), sentence);
    let sentence = "they could not be timed: the GPU fails at anything: the GPU is lost";
    for left in [0, 1, 30, 100] {
        tried(Fake { left: AtomicUsize::new(left), ..gpu() }, compiler(), sentence);
    }
    tried(gpu(), CountingCompiler { panics: true, ..compiler() }, "choosing kernels panicked");

    let nowhere =
        jit::choose(&(Arc::new(gpu()) as Arc<dyn Loads>), Err(NotCompiled::NoLibrary), &KernelCache::at(folder.path()));
    assert_eq!(nowhere.to_string(), "PTX, compiled ahead; libnvrtc.so was not found");
}

#[test]
fn kept_code_that_a_driver_refuses_is_compiled_anew() {
    let (folder, compiler) = (tempfile::tempdir().unwrap(), CountingCompiler::new());
    choose(Fake::new(), &compiler, folder.path());
    let (chosen, compiled) = choose(Fake { refuses: Some("many"), ..Fake::new() }, &compiler, folder.path());
    assert!(matches!(why(&chosen), NotCompiled::Refused { file: "many", .. }) && compiled.is_empty(), "{chosen}");
    assert!(compiler.count() > trial::FILES.len());
}

/// NVRTC where a test can find it: named, fetched by `scripts/cuda_kernels.sh`, or the host's.
fn nvrtc() -> Option<Nvrtc> {
    if RunOn::said() == RunOn::Nothing {
        return None;
    }
    let named = std::env::var_os("TSNODE_TEST_NVRTC").map(PathBuf::from);
    let fetched = here().join("../target/cuda-kernels/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    let found = || Libraries::find().nvrtc.found.clone();
    let path = named.or_else(|| fetched.exists().then_some(fetched)).or_else(found);
    if path.is_none() {
        eprintln!("skipped: no NVRTC; TSNODE_TEST_NVRTC names none, and scripts/cuda_kernels.sh fetched none");
    }
    path.map(|path| Nvrtc::open(&path).unwrap())
}

/// NVRTC, which compiles nothing a second time in this process, whichever test asks.
struct Remembering(Nvrtc);

impl KernelCompiler for Remembering {
    fn version(&self) -> Result<(i32, i32), NotCompiled> {
        self.0.version()
    }
    fn knows(&self, sm: u32) -> Result<bool, NotCompiled> {
        self.0.knows(sm)
    }
    fn compile(&self, file: &KernelFile, sm: u32) -> Result<Vec<u8>, NotCompiled> {
        static CUBINS: Mutex<BTreeMap<(&str, u32), Vec<u8>>> = Mutex::new(BTreeMap::new());
        let mut cubins = CUBINS.lock().unwrap();
        if let Some(cubin) = cubins.get(&(file.name, sm)) {
            return Ok(cubin.clone());
        }
        let cubin = self.0.compile(file, sm)?;
        cubins.insert((file.name, sm), cubin.clone());
        Ok(cubin)
    }
}

/// Names of kernels, as the PTX has them.
fn kernels(file: &KernelFile) -> Vec<&str> {
    file.ptx.split(".entry ").skip(1).map(|rest| rest.split('(').next().unwrap()).collect()
}

fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// For one architecture, and a file for an older one: that each compiles for both `scripts/cuda_kernels.sh --check` says.
#[test]
fn every_kernel_compiles_to_machine_code() {
    let Some(nvrtc) = nvrtc().map(Remembering) else { return };
    for (file, sm) in FILES.iter().map(|file| (file, 90)).chain(sources::file("few").map(|file| (file, 80))) {
        assert!(nvrtc.knows(sm).unwrap());
        let cubin = nvrtc.compile(file, sm).unwrap();
        assert!(cubin.starts_with(b"\x7fELF"), "{} for sm_{sm}", file.name);
        let names = kernels(file);
        assert!(!names.is_empty());
        for name in names {
            assert!(holds(&cubin, format!("\0.text.{name}\0").as_bytes()), "{name} of {} for sm_{sm}", file.name);
        }
    }
}

#[test]
fn a_source_that_is_wrong_is_an_error_with_the_compilers_words() {
    let Some(nvrtc) = nvrtc() else { return };
    let compile = |source| nvrtc.compile(&KernelFile { name: "wrong", source, ptx: "" }, 80);
    let Err(NotCompiled::Source { file, log }) = compile("#include \"common.cuh\"\n\nKERNEL(32) f() { u8 x = y; }\n")
    else {
        panic!("it compiled")
    };
    assert_eq!(file, "wrong.cu");
    assert!(log.contains("wrong.cu(3)") && log.contains("\"y\" is undefined"), "{log}");
    // What only the last of the compiler's steps can see: a function that is nowhere.
    let nowhere = "extern __device__ int nowhere();\nextern \"C\" __global__ void f(int *out) { *out = nowhere(); }";
    let Err(NotCompiled::Source { log, .. }) = compile(nowhere) else { panic!("it compiled") };
    assert!(log.contains("nowhere"), "{log}");
    assert!(compile("extern \"C\" __global__ void f() {}").is_ok());
}

#[test]
fn a_gpu_that_nvrtc_does_not_know_is_told_apart() {
    let Some(nvrtc) = nvrtc() else { return };
    let (major, _) = nvrtc.version().unwrap();
    assert!(major >= 12);
    assert!(nvrtc.knows(86).unwrap() && !nvrtc.knows(10).unwrap() && !nvrtc.knows(999).unwrap());
    let asked = nvrtc.compile(sources::file("rows").unwrap(), 999);
    assert!(matches!(asked, Err(NotCompiled::Compiler { call: "compiling", answer: 5 })), "{asked:?}");
}

#[test]
fn what_is_no_nvrtc_is_said_to_be_none() {
    let missing = Nvrtc::open(Path::new("/nowhere/libnvrtc.so.12")).unwrap_err().to_string();
    assert!(missing.starts_with("/nowhere/libnvrtc.so.12 cannot be used: "), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let rubbish = folder.path().join("libnvrtc.so.12");
    std::fs::write(&rubbish, "no library").unwrap();
    assert!(matches!(Nvrtc::open(&rubbish), Err(NotCompiled::Unusable { .. })));
}

#[test]
fn what_is_timed_computes() {
    for machine in machines() {
        let mut work = TrialWork::new(&machine).unwrap();
        let [attend, chunk, few, many, mmq] = trial::FILES.map(|file| work.result(file).unwrap());
        for (file, numbers) in trial::FILES.iter().zip([&attend, &chunk, &few, &many, &mmq]) {
            assert!(numbers.iter().all(|x| x.is_finite()), "{file}");
            assert!(numbers.iter().filter(|x| **x != 0.0).count() > numbers.len() / 2, "{file}");
        }
        // Rows of both kinds of attention that have the same queries and see the same tokens: a tile's last.
        let row = (TILE_ROWS - 1) * HEADS * GROUP * DIM;
        for (single, chunk) in attend[row..].iter().zip(&chunk[row..]).take(HEADS * GROUP * DIM) {
            assert!((single - chunk).abs() < 4e-3 * single.abs(), "{single} {chunk}");
        }
    }
}

/// What overlaps is told by its bits from what does not: whatever was computed before must not be in them.
#[test]
fn launches_in_a_row_leave_the_same_each_time() {
    for machine in machines() {
        let mut work = TrialWork::new(&machine).unwrap();
        let [first, again] = [(); 2].map(|()| work.step().unwrap().0);
        assert!(first.iter().all(|x| x.is_finite()) && first.iter().any(|x| *x != 0.0));
        let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&first), bits(&again));
    }
}

/// Which GPU tests are run on, if on any.
fn gpu() -> Option<u16> {
    if let RunOn::Gpu(ordinal) = RunOn::said() { Some(ordinal) } else { None }
}

/// A GPU all of whose kernels are NVRTC's.
pub(super) fn compiled(ordinal: u16) -> Arc<dyn Machine> {
    let gpu = driver_api::open_to_load(ordinal).unwrap();
    let (nvrtc, sm) = (Remembering(nvrtc().unwrap()), gpu.identity().unwrap().sm);
    for file in &FILES {
        gpu.load(file.name, &nvrtc.compile(file, sm).unwrap()).unwrap();
        gpu.turn(file.name, Image::Compiled);
    }
    if let Err(why) = gpu.overlap(true) {
        eprintln!("launches do not overlap: {why}");
    }
    gpu
}

/// A row's product with a small matrix of ones.
fn multiplies(machine: &Arc<dyn Machine>) {
    let (x, out) = (Lcg(1).numbers(64), poisoned(machine, 4));
    let memory = with(machine, &[1.0; 256]);
    let w = GpuMatrix { memory, form: Form::F32, rows: 4, cols: 64, all: 4 };
    let row = with(machine, &x);
    let place = Out { at: out.at(), stride: 4 };
    Ops::new(machine.clone()).products(GpuRows { at: row.at(), kind: Kind::F32 }, 1, &[(&w, place)]).unwrap();
    let sum: f32 = x.iter().sum();
    assert!(read(machine, &out, 4).iter().all(|found| (found - sum).abs() < 1e-4), "{sum}");
}

#[test]
fn a_gpu_is_opened_with_kernels_of_its_own_and_again_with_those_that_were_kept() {
    let (Some(ordinal), Some(nvrtc)) = (gpu(), nvrtc().map(Remembering)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = KernelCache::at(folder.path().join("kernels"));
    for wanted in [CacheState::Written, CacheState::Found] {
        let machine = driver_api::open_with(ordinal, Ok(&nvrtc), &cache).unwrap();
        let chosen = machine.about().kernels;
        assert_eq!(kept(&chosen), &wanted, "{chosen}");
        eprintln!("{wanted:?}: {chosen}");
        multiplies(&machine);
    }
    // Damage is seen, and harmless.
    let file = only_file(&folder.path().join("kernels"));
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let machine = driver_api::open_with(ordinal, Ok(&nvrtc), &cache).unwrap();
    assert_eq!(kept(&machine.about().kernels), &CacheState::Written);
    multiplies(&machine);
}

#[test]
fn a_gpu_without_nvrtc_has_its_ptx() {
    let Some(ordinal) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = KernelCache::at(folder.path());
    let machine = driver_api::open_with(ordinal, Err(NotCompiled::NoLibrary), &cache).unwrap();
    assert_eq!(machine.about().kernels, Kernels::Ahead(NotCompiled::NoLibrary));
    multiplies(&machine);
    assert_eq!(driver_api::open(ordinal).unwrap().about().kernels, Kernels::Ahead(NotCompiled::NotAsked));
}

#[test]
fn machine_code_that_is_none_or_for_another_gpu_is_refused() {
    let Some(ordinal) = gpu() else { return };
    let gpu = driver_api::open_to_load(ordinal).unwrap();
    let machine: Arc<dyn Machine> = gpu.clone();
    let rubbish = [b"rubbish".as_slice(), &[0; 4096]].concat();
    assert!(matches!(gpu.load("few", &rubbish), Err(GpuError::Unsupported(_))));
    let empty = [b"\x7fELF".as_slice(), &[0; 4096]].concat();
    assert!(matches!(gpu.load("few", &empty), Err(GpuError::Failed { call: "compiling kernels", .. })));
    gpu.turn("few", Image::Compiled);
    multiplies(&machine);
    let Some(nvrtc) = nvrtc().map(Remembering) else { return };
    let sm = gpu.identity().unwrap().sm;
    let other = nvrtc.compile(sources::file("few").unwrap(), if sm == 90 { 80 } else { 90 }).unwrap();
    assert!(matches!(gpu.load("few", &other), Err(GpuError::Failed { call: "compiling kernels", .. })));
    multiplies(&machine);
    gpu.load("few", &nvrtc.compile(sources::file("few").unwrap(), sm).unwrap()).unwrap();
    for image in [Image::Ahead, Image::Compiled] {
        gpu.turn("few", image);
        multiplies(&machine);
        let launch = Launch { module: "few", kernel: "nothing", grid: [1; 3], threads: 32, shared: 0 };
        let found = machine.launch(Queue::Compute, launch, &[]);
        assert!(matches!(found, Err(GpuError::Failed { call: "finding a kernel", .. })), "{found:?}");
    }
}
