//! The page that people see: its built files, which are inside the program, and what a browser may do for it.
//!
//! Its sources are in `node/page`; `scripts/page_build.sh` builds them. It comes without anything of the swarm: all it shows it asks
//! for itself, with the key that it is given.

use axum::{
    http::{HeaderName, header},
    response::IntoResponse,
};

/// Nothing but what this peer sends, its script as a file and the one sheet that is inside the page: no text becomes code, no page of
/// others has this one inside, and nothing that it shows can be sent elsewhere.
const POLICY: &str = concat!(
    "default-src 'none'; script-src 'self'; style-src 'sha256-",
    include_str!("../../page/built/sheet.sha256"),
    "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
);

const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // Names stay when the program is replaced by another version.
    (header::CACHE_CONTROL, "no-cache"),
];

pub(super) async fn index() -> impl IntoResponse {
    sent("text/html; charset=utf-8", include_str!("../../page/built/index.html"))
}

pub(super) async fn script() -> impl IntoResponse {
    sent("text/javascript; charset=utf-8", include_str!("../../page/built/page.js"))
}

fn sent(kind: &'static str, text: &'static str) -> impl IntoResponse {
    (HEADERS, [(header::CONTENT_TYPE, kind)], text)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest::{SHA256, digest};
    use data_encoding::BASE64;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// What the page may weigh (bytes).
    const MOST: usize = 300_000;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("page")
    }

    fn below(path: &Path, found: &mut BTreeSet<String>) {
        if path.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| below(&entry.unwrap().path(), found));
        } else {
            found.insert(path.strip_prefix(folder()).unwrap().to_str().unwrap().replace('\\', "/"));
        }
    }

    #[test]
    fn the_built_files_are_of_the_sources_in_the_tree() {
        let hint = "run scripts/page_build.sh, and commit what it builds";
        let recorded = fs::read_to_string(folder().join("built/sources.txt")).unwrap();
        let mut named = BTreeSet::new();
        for line in recorded.lines() {
            let (hash, path) = line.split_once("  ").unwrap();
            let bytes = fs::read(folder().join(path)).unwrap_or_else(|_| panic!("{path} has gone: {hint}"));
            assert_eq!(blake3::hash(&bytes).to_hex().as_str(), hash, "{path} has changed: {hint}");
            named.insert(path.to_owned());
        }
        let mut there = BTreeSet::new();
        ["src", "built"].iter().for_each(|name| below(&folder().join(name), &mut there));
        there.remove("built/sources.txt");
        let unknown: Vec<_> = there.difference(&named).collect();
        assert!(unknown.is_empty(), "{unknown:?}: {hint}");
    }

    #[test]
    fn the_page_is_small_and_asks_nobody_else() {
        let [index, script] =
            ["index.html", "page.js"].map(|name| fs::read_to_string(folder().join("built").join(name)).unwrap());
        assert!(index.len() + script.len() <= MOST);
        // What the policy would refuse: all styles but the one that it knows.
        assert!(!index.contains(" style=") && !index.contains("<script>"), "{index}");
        let sheet = index.split_once("<style>").and_then(|(_, rest)| rest.split_once("</style>")).unwrap().0;
        let hash = BASE64.encode(digest(&SHA256, sheet.as_bytes()).as_ref());
        assert!(super::POLICY.contains(&format!("style-src 'sha256-{hash}';")), "{hash}");
        assert_eq!((index.matches("<style").count(), index.matches("https://").count()), (1, 0));
        assert_eq!(script.matches("fetch(").count(), 1, "one place asks, and shows the key");
    }
}
