//! The real client and `scripts/install.sh` against a small server of releases, and a small program that is replaced.

use super::*;
use aws_lc_rs::digest::{SHA256, digest};
use axum::{
    Router,
    extract::{Path as UrlPath, State},
    http::StatusCode,
};
use data_encoding::{BASE64, HEXLOWER};
use ed25519_dalek::{Signer as _, SigningKey};
use semver::Version;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A program of this version.
fn program(version: &str) -> String {
    format!("#!/bin/sh\necho tsnode {version}\n")
}

/// Who makes the releases here.
fn releaser() -> SigningKey {
    SigningKey::from_bytes(&[1; 32])
}

/// Who is somebody else.
fn stranger() -> SigningKey {
    SigningKey::from_bytes(&[2; 32])
}

/// What minisign calls a key: where it is not the key's own first bytes, it is by chance.
fn named(key: &SigningKey) -> [u8; 10] {
    let mut name = *b"Ed........";
    name[2..].copy_from_slice(&key.verifying_key().as_bytes()[..8]);
    name
}

/// A public key as `tsnode update` is told it.
pub(super) fn public(key: &SigningKey) -> String {
    BASE64.encode(&[&named(key)[..], key.verifying_key().as_bytes()].concat())
}

/// A list's signature, as `scripts/sign_release.sh` writes it.
pub(super) fn signed(key: &SigningKey, list: &[u8]) -> String {
    let (signature, comment) = (key.sign(list).to_bytes(), "tsnode of a test");
    let all = key.sign(&[&signature[..], comment.as_bytes()].concat()).to_bytes();
    let [signature, all] = [[&named(key)[..], &signature].concat(), all.to_vec()].map(|bytes| BASE64.encode(&bytes));
    format!("untrusted comment: by a test\n{signature}\ntrusted comment: {comment}\n{all}\n")
}

type ReleaseFiles = Arc<BTreeMap<String, Vec<u8>>>;

struct Installation {
    folder: tempfile::TempDir,
    files: BTreeMap<String, Vec<u8>>,
}

impl Installation {
    /// A program of version 1, and nothing to update it with.
    fn new() -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap(), files: BTreeMap::new() };
        fs::create_dir(world.folder.path().join("bin")).unwrap();
        write_program(&world.path(), &program("1.0.0"));
        world
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("bin/tsnode")
    }

    fn says(&self) -> String {
        // Not by itself: what this process has written another test's child may have open.
        let done = Command::new("sh").arg(self.path()).output().unwrap();
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    /// Everything in the program's folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("bin")).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A release with this program in it; the newest.
    fn release(mut self, version: &str, text: &str) -> Self {
        let target = format!("{}-linux", std::env::consts::ARCH);
        let stem = format!("tsnode-{version}-{target}");
        let packed = self.folder.path().join("pack");
        fs::create_dir_all(packed.join(&stem)).unwrap();
        write_program(&packed.join(&stem).join("tsnode"), text);
        let archive = packed.join("archive.tar.gz");
        let done = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&packed).arg(&stem).status().unwrap();
        assert!(done.success());
        let bytes = fs::read(archive).unwrap();
        let list = format!("{}  {stem}.tar.gz\n", HEXLOWER.encode(digest(&SHA256, &bytes).as_ref()));
        for folder in ["latest/download".to_owned(), format!("download/v{version}")] {
            self.files.insert(format!("{folder}/SHA256SUMS"), list.clone().into_bytes());
            self.files.insert(format!("{folder}/{stem}.tar.gz"), bytes.clone());
        }
        self.signed_by(&releaser())
    }

    /// Every list is signed as it is now.
    fn signed_by(mut self, key: &SigningKey) -> Self {
        let lists = self.files.iter().filter(|(name, _)| name.ends_with("SHA256SUMS"));
        let signatures: Vec<_> =
            lists.map(|(name, list)| (format!("{name}.minisig"), signed(key, list).into_bytes())).collect();
        self.files.extend(signatures);
        self
    }

    /// Does something to the newest archive's bytes, or those of what else has such a name.
    fn damaged(mut self, end: &str, damage: impl Fn(&mut Vec<u8>)) -> Self {
        let ours = |name: &String| name.starts_with("latest/") && name.ends_with(end);
        self.files.iter_mut().filter(|(name, _)| ours(name)).for_each(|(_, bytes)| damage(bytes));
        self
    }

    /// No list has a signature.
    fn unsigned(mut self) -> Self {
        self.files.retain(|name, _| !name.ends_with(".minisig"));
        self
    }

    /// The folder's address, and what answers there.
    async fn served(&self) -> (String, JoinHandle<()>) {
        let router =
            Router::new().route("/{*path}", axum::routing::get(serve)).with_state(Arc::new(self.files.clone()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        (base, crate::tasks::spawn("test", async move { axum::serve(listener, router).await.unwrap() }))
    }

    /// What `scripts/install.sh` says when it is to install the newest into this program's folder.
    async fn installed(&self) -> Result<String, String> {
        let (base, server) = self.served().await;
        let done = tokio::process::Command::new("sh")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install.sh"))
            .arg("--dir")
            .arg(self.folder.path().join("bin"))
            .envs([("TSNODE_RELEASES", base), ("TSNODE_RELEASE_KEY", public(&releaser())), ("no_proxy", "*".into())])
            .output()
            .await;
        server.abort();
        let done = done.unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if done.status.success() { Ok(said(&done.stdout)) } else { Err(said(&done.stderr)) }
    }

    /// Serves it, and has the program replaced as the verb does.
    async fn update(&self, version: Option<&str>) -> Result<Version, String> {
        let (base, server) = self.served().await;
        let wanted = version.map(|version| version.parse().unwrap());
        let outcome = async {
            let releases = Releases::new(&base, ReleaseKeys::parse(&public(&releaser()))?)?;
            let archive = releases.find(wanted.as_ref()).await?;
            let place = ProgramPlace::new(self.path());
            let workshop = place.workshop()?;
            let packed = workshop.file("archive.tar.gz");
            releases.fetch(&archive, &packed).await?;
            place.replace(&archive, &packed, &workshop).map(|()| archive.version)
        };
        let outcome: Result<Version, UpdateError> = outcome.await;
        server.abort();
        outcome.map_err(|error| error.to_string())
    }
}

/// A file of the folder.
async fn serve(State(files): State<ReleaseFiles>, UrlPath(path): UrlPath<String>) -> Result<Vec<u8>, StatusCode> {
    files.get(&path).cloned().ok_or(StatusCode::NOT_FOUND)
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    crate::platform::let_all_run(path).unwrap();
}

#[tokio::test]
async fn a_program_is_replaced_and_comes_back() {
    let world = Installation::new().release("2.0.0", &program("2.0.0"));
    assert_eq!(world.update(None).await.unwrap(), Version::new(2, 0, 0));
    assert_eq!((world.says(), world.names()), ("tsnode 2.0.0".into(), vec!["tsnode".into(), "tsnode.previous".into()]));
    let place = ProgramPlace::new(world.path());
    place.go_back().unwrap();
    assert_eq!(world.says(), "tsnode 1.0.0");
    place.go_back().unwrap();
    assert_eq!(world.says(), "tsnode 2.0.0", "and forth");
    let world = world.release("3.0.0", &program("3.0.0"));
    assert_eq!(world.update(Some("2.0.0")).await.unwrap(), Version::new(2, 0, 0), "the one that was asked for");
}

#[tokio::test]
async fn nothing_takes_the_programs_place_that_is_not_what_it_should_be() {
    let good = || Installation::new().release("2.0.0", &program("2.0.0"));
    let cases = [
        ("cut", good().damaged(".gz", |bytes| bytes.truncate(100)), "it was cut or changed"),
        ("changed", good().damaged(".gz", |bytes| bytes[20] ^= 1), "it was cut or changed"),
        ("another list", good().damaged("SUMS", |list| list[0] ^= 1), "is not what the key"),
        ("another's signature", good().signed_by(&stranger()), "none of those that are trusted here"),
        ("half a signature", good().damaged(".minisig", |signature| signature.truncate(100)), "is no signature"),
        ("no signature", good().unsigned(), "cannot be had (the server answered 404)"),
        ("no releases", Installation::new(), "the server answered 404"),
        (
            "another version within",
            Installation::new().release("2.0.0", &program("1.5.0")),
            "says that it is \"tsnode 1.5.0\"",
        ),
        ("does not run", Installation::new().release("2.0.0", "#!/bin/false\n"), "does not run on this machine"),
        ("no program", good().without_program(), "there is no tsnode-2.0.0"),
    ];
    for (what, world, why) in cases {
        let said = world.update(None).await.unwrap_err();
        assert!(said.contains(why), "{what}: {said}");
        assert_eq!((world.says(), world.names()), ("tsnode 1.0.0".into(), vec!["tsnode".to_owned()]), "{what}");
    }
    let mut world = good();
    let list = b"0\n".repeat(1 << 16);
    world.files.insert("latest/download/SHA256SUMS".into(), list);
    assert!(world.update(None).await.unwrap_err().contains("more than 65536 bytes"));
}

impl Installation {
    /// The archive, whose hash is right, holds something else.
    fn without_program(mut self) -> Self {
        let packed = self.folder.path().join("pack");
        let archive = packed.join("other.tar.gz");
        fs::write(packed.join("README.md"), "").unwrap();
        let done = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&packed).arg("README.md").status();
        assert!(done.unwrap().success());
        let bytes = fs::read(archive).unwrap();
        let hash = HEXLOWER.encode(digest(&SHA256, &bytes).as_ref());
        for (name, file) in &mut self.files {
            *file = match name.ends_with("SHA256SUMS") {
                true => [hash.as_bytes(), &file[64..]].concat(),
                false => bytes.clone(),
            };
        }
        self.signed_by(&releaser())
    }
}

#[tokio::test]
async fn the_installer_takes_what_is_signed_and_nothing_else() {
    let version = Command::new("openssl").arg("version").output();
    let version = version.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
    if !version.starts_with("OpenSSL 3") {
        return eprintln!("no OpenSSL 3, but {version:?}: install.sh was not tried");
    }
    let good = || Installation::new().release("2.0.0", &program("2.0.0"));
    let world = good();
    let said = world.installed().await.unwrap();
    assert!(said.contains("(2.0.0)") && world.says() == "tsnode 2.0.0", "{said}");
    let cases = [
        ("another archive", good().damaged(".gz", |bytes| bytes[20] ^= 1), "it was cut or changed"),
        ("another list", good().damaged("SUMS", |list| list[0] ^= 1), "is not signed with"),
        ("another's signature", good().signed_by(&stranger()), "is not signed with"),
        ("half a signature", good().damaged(".minisig", |signature| signature.truncate(100)), "is not signed with"),
        ("no signature", good().unsigned(), "SHA256SUMS.minisig could not be fetched"),
    ];
    for (what, world, why) in cases {
        let said = world.installed().await.unwrap_err();
        assert!(said.contains(why) && said.contains("nothing was installed"), "{what}: {said}");
        assert_eq!((world.says(), world.names()), ("tsnode 1.0.0".into(), vec!["tsnode".to_owned()]), "{what}");
    }
}

#[test]
fn what_others_keep_is_theirs_to_update() {
    let world = Installation::new();
    let place = ProgramPlace::new(world.path());
    assert_eq!(place.installer(), None);
    assert!(matches!(place.go_back(), Err(UpdateError::NoPrevious(_))));
    fs::write(world.folder.path().join(".crates.toml"), "[v1]\n\"tsnode 0.1.0 (path+file:///x)\" = [\"tsnode\"]\n")
        .unwrap();
    let said = place.is_ours().unwrap_err().to_string();
    assert!(said.contains("cargo install --path node"), "{said}");
    // Which package a file came with is dpkg's to say, where there is one.
    if Command::new("dpkg").args(["-S", "/bin/true"]).output().is_ok_and(|done| done.status.success()) {
        assert_eq!(ProgramPlace::new("/bin/true".into()).installer(), Some(Installer::Debian));
    }
}
