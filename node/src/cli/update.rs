//! `tsnode update`: replaces this program by a release's.

use super::{interrupts::Interrupts, is_set, json as json_flag, output, switch, verb};
use crate::{
    cli::exit::{Exit, ExitKind},
    update::{ProgramPlace, ReleaseKeys, Releases, UpdateError},
};
use clap::{Arg, ArgMatches, Command};
use semver::Version;
use serde_json::json;
use std::cmp::Ordering;
use std::env;

/// The variable that says where releases are.
const RELEASES: &str = "TSNODE_RELEASES";
/// The variable that says whose they are.
const RELEASE_KEY: &str = "TSNODE_RELEASE_KEY";

pub(super) fn command() -> Command {
    let version =
        Arg::new("version").long("version").value_name("X").value_parser(|text: &str| text.parse::<Version>());
    let from = Arg::new("from").long("from").value_name("URL");
    let key = Arg::new("key").long("key").value_name("KEY");
    verb("update", "Replace this program by a release's, verified; the one before is kept", "tsnode update --check")
        .arg(switch("check", "Say whether there is a newer one, and change nothing"))
        .arg(version.help("Not the newest, but this one").conflicts_with("rollback"))
        .arg(switch("rollback", "Change this program with the one before").conflicts_with("check"))
        .arg(from.help("Folder of releases [default: TSNODE_RELEASES]").conflicts_with("rollback"))
        .arg(
            key.help("Public key that signs them [default: TSNODE_RELEASE_KEY, then that of the program]")
                .conflicts_with("rollback"),
        )
        .arg(json_flag())
}

pub(super) async fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let path = env::current_exe().map_err(|error| Exit::file(ExitKind::Other, "this program", &error))?;
    let place = ProgramPlace::new(path.clone());
    place.is_ours().map_err(exit)?;
    let own = Version::parse(env!("CARGO_PKG_VERSION")).map_err(|e| Exit::new(ExitKind::Other, e.to_string()))?;
    if is_set(matches, "rollback") {
        place.go_back().map_err(exit)?;
        return said(matches, &json!({ "from": own.to_string(), "changed": true }), "changed with the program before");
    }
    let base = matches.get_one::<String>("from").cloned().or_else(|| env::var(RELEASES).ok());
    let base = base.filter(|base| !base.trim().is_empty()).ok_or_else(|| exit(UpdateError::Nowhere))?;
    let releases = Releases::new(&base, keys(matches).map_err(exit)?).map_err(exit)?;
    let wanted = matches.get_one::<Version>("version");
    let archive = releases.find(wanted).await.map_err(exit)?;
    // What is older is taken where it is named, and never by itself.
    let is_next = if wanted.is_some() { archive.version != own } else { archive.version > own };
    let mut told = json!({ "from": own.to_string(), "to": archive.version.to_string(), "changed": false });
    if !is_next {
        return said(matches, &told, &nothing_to_do(&own, &archive.version, wanted.is_some()));
    }
    if is_set(matches, "check") {
        return said(
            matches,
            &told,
            &format!("{} is there, and {own} here; tsnode update fetches it", archive.version),
        );
    }
    let workshop = place.workshop().map_err(exit)?;
    let packed = workshop.file("archive.tar.gz");
    // Whoever interrupts it finds nothing half-fetched beside the program.
    let fetched = async { releases.fetch(&archive, &packed).await.map_err(exit) };
    Interrupts::heard().unless(fetched).await?;
    place.replace(&archive, &packed, &workshop).map_err(exit)?;
    told["changed"] = true.into();
    said(matches, &told, &format!("{}: {own} is now {}", path.display(), archive.version))?;
    note!(
        "a peer that runs goes on with {own} until it is started again (systemctl --user restart tsnode, where it is a service)"
    );
    note!("back to {own}: tsnode update --rollback");
    Ok(())
}

/// Whose releases are taken: who names a folder may name its key too.
fn keys(matches: &ArgMatches) -> Result<ReleaseKeys, UpdateError> {
    let named = matches.get_one::<String>("key").cloned().or_else(|| env::var(RELEASE_KEY).ok());
    match named.filter(|key| !key.trim().is_empty()) {
        Some(named) => ReleaseKeys::parse(&named),
        None => ReleaseKeys::built_in(),
    }
}

/// Why this program stays as it is.
fn nothing_to_do(own: &Version, there: &Version, is_named: bool) -> String {
    match own.cmp(there) {
        _ if is_named => format!("{own} is here already: nothing to do"),
        Ordering::Equal => format!("{own} is the newest release, and is here already: nothing to do"),
        _ => format!(
            "{own} is here, which is newer than the newest release ({there}): nothing to do; --version {there} takes that one"
        ),
    }
}

fn said(matches: &ArgMatches, told: &serde_json::Value, line: &str) -> Result<(), Exit> {
    if is_set(matches, "json") {
        return output::print_json(told);
    }
    say!("{line}");
    Ok(())
}

fn exit(error: UpdateError) -> Exit {
    let kind = match error {
        UpdateError::Nowhere | UpdateError::NoKey | UpdateError::Key(_) | UpdateError::Insecure(_) => ExitKind::Usage,
        UpdateError::Unreachable { .. } | UpdateError::Unsigned { .. } => ExitKind::Unreachable,
        _ => ExitKind::Other,
    };
    Exit::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_back_fetches_nothing() {
        let is_taken = |words: &[&str]| command().try_get_matches_from(words).is_ok();
        assert!(is_taken(&["update", "--rollback", "--json"]));
        for flag in ["--from=https://example.com", "--key=RW", "--version=1.0.0", "--check"] {
            assert!(is_taken(&["update", flag]) && !is_taken(&["update", "--rollback", flag]), "{flag}");
        }
    }

    #[test]
    fn where_there_is_nothing_to_do_it_is_said_why() {
        let (old, new) = (Version::new(0, 1, 0), Version::new(0, 2, 0));
        assert!(nothing_to_do(&old, &old, false).starts_with("0.1.0 is the newest release"));
        assert!(nothing_to_do(&new, &old, false).contains("newer than the newest release (0.1.0)"));
        assert_eq!(nothing_to_do(&new, &new, true), "0.2.0 is here already: nothing to do");
    }
}
