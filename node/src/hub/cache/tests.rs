//! What a folder of the hub holds: found, damaged, locked and removed.

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn cached(files: &[(&str, &str)]) -> (tempfile::TempDir, Cache, RepoId, Revision) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path());
    let (repo, commit): (RepoId, Revision) = ("org/repo".parse().unwrap(), COMMIT.parse().unwrap());
    for (file, content) in files {
        let like = BlobHash::of_etag(&"0".repeat(40)).unwrap();
        let mut hasher = like.hasher(content.len() as u64);
        hasher.update(content.as_bytes());
        let hash = hasher.finish();
        let blob = cache.blob(&repo, &hash);
        make_parents(&blob).unwrap();
        fs::write(blob, content).unwrap();
        cache.link(&repo, &commit, file, &hash).unwrap();
    }
    cache.remember(&repo, &Revision::default(), &commit).unwrap();
    (folder, cache, repo, commit)
}

#[test]
fn models_are_found_by_their_names_and_called_by_them() {
    let files = [("config.json", "{}"), ("tokenizer.json", "t"), ("model.safetensors", "w"), ("Q/m-Q4_0.gguf", "g")];
    let (_folder, cache, repo, commit) = cached(&files);
    let names: Vec<String> = cache.models().iter().map(|model| model.name.to_string()).collect();
    assert_eq!(names, ["org/repo", "org/repo:Q4_0"]);
    let found = cache.model(&"org/repo".parse().unwrap()).unwrap().unwrap();
    assert_eq!((found.lacking, found.bytes), (None, 4));
    assert_eq!(name_of(&found.path).as_deref(), Some("org/repo"));
    let found = cache.model(&"org/repo:Q4_0".parse().unwrap()).unwrap().unwrap();
    assert_eq!(fs::read_to_string(&found.path).unwrap(), "g");
    assert_eq!(name_of(&found.path).as_deref(), Some("org/repo:Q4_0"));
    assert_eq!(name_of(Path::new("/models/snapshots/x")), None);
    let other = ModelName { revision: commit, .."org/repo".parse().unwrap() };
    assert!(cache.model(&other).unwrap().is_some());
    assert!(cache.model(&"org/other".parse().unwrap()).unwrap().is_none());
    assert_eq!(cache.meant(None), [repo]);
}

#[test]
fn links_to_nothing_are_not_there_and_are_found() {
    let (_folder, cache, repo, commit) =
        cached(&[("config.json", "{}"), ("tokenizer.json", "t"), ("model.safetensors", "w")]);
    let pointer = cache.snapshot(&repo, &commit).join("tokenizer.json");
    fs::remove_file(pointer.canonicalize().unwrap()).unwrap();
    assert!(!cache.has(&repo, &commit, "tokenizer.json"));
    let found = cache.model(&"org/repo".parse().unwrap()).unwrap().unwrap();
    assert_eq!(found.lacking.as_deref(), Some("tokenizer.json"));
    assert_eq!(cache.verify(&repo, |_| ()), [Damage::Dangling(pointer)]);
}

#[test]
fn a_file_that_changed_is_found() {
    let (_folder, cache, repo, commit) = cached(&[("config.json", "{}"), ("model.safetensors", "weights")]);
    assert_eq!(cache.verify(&repo, |_| ()), []);
    let blob = cache.snapshot(&repo, &commit).join("model.safetensors").canonicalize().unwrap();
    fs::write(&blob, "weighty").unwrap();
    let mut read = 0;
    let found = cache.verify(&repo, |bytes| read += bytes);
    assert_eq!(found.iter().map(|damage| damage.path().canonicalize().unwrap()).collect::<Vec<_>>(), [blob]);
    assert_eq!(read, 9);
}

#[test]
fn one_quantisation_goes_and_the_other_stays() {
    let (_folder, cache, repo, _) = cached(&[("m-Q4_0.gguf", "four"), ("m-Q8_0.gguf", "eighteight")]);
    assert_eq!(cache.remove(&"org/repo:Q8_0".parse().unwrap()).unwrap(), 10);
    let left: Vec<String> = cache.models().iter().map(|model| model.name.to_string()).collect();
    assert_eq!((left, cache.bytes(&repo)), (vec!["org/repo:Q4_0".to_owned()], 4));
    let said = cache.remove(&"org/repo:Q8_0".parse().unwrap()).unwrap_err().to_string();
    assert!(said.contains("org/repo:Q8_0 is not in"), "{said}");
    cache.remove(&"org/repo".parse().unwrap()).unwrap();
    assert!(cache.models().is_empty() && cache.meant(None).is_empty());
}

#[test]
fn who_holds_a_lock_holds_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b.lock");
    let held = BlobHold::take(&path).unwrap().unwrap();
    assert!(BlobHold::take(&path).unwrap().is_none());
    drop(held);
    assert!(BlobHold::take(&path).unwrap().is_some());
}
