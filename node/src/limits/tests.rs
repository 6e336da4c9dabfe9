//! What is lent changes at once, is kept, and is refused where no start would take it.

use super::*;

fn bounds() -> LimitBounds {
    LimitBounds { all_threads: 8, ranks: 2, ..LimitBounds::default() }
}

fn upload(mbit: LimitUpdate<f64>) -> LimitChange {
    LimitChange { upload_mbit: mbit, ..LimitChange::default() }
}

fn text(folder: &Path) -> String {
    fs::read_to_string(folder.join(LIMITS_FILE)).unwrap_or_default()
}

#[test]
fn a_limit_on_uploads_holds_at_once_and_is_kept_beside_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, _relends) = LimitsHandle::new(folder.path(), Limits::default(), bounds());
    let rate = handle.upload();
    let said = handle.change(upload(LimitUpdate::To(8.0))).unwrap();
    assert_eq!((*rate.borrow(), handle.limits().upload_mbit), (Some(BytesPerSecond(1e6)), Some(8.0)));
    assert_eq!(said, ["sends at most 8 Mbit/s to other peers"]);
    let hours = LimitChange { hours: LimitUpdate::To("22:00-07:00".parse().unwrap()), ..LimitChange::default() };
    assert!(handle.change(hours).unwrap()[0].contains("22:00-07:00"));
    assert!(text(folder.path()).ends_with("hours = \"22:00-07:00\"\nupload_mbit = \"8\"\n"), "{}", text(folder.path()));
    // A peer that starts again keeps what it does not change.
    let (again, _relends) = LimitsHandle::new(folder.path(), Limits::default(), bounds());
    again.change(upload(LimitUpdate::Unlimited)).unwrap();
    assert!(text(folder.path()).ends_with("hours = \"22:00-07:00\"\nupload_mbit = \"\"\n"), "no limit is said, too");
    assert_eq!(again.kept().len(), 2);
}

#[test]
fn what_its_owner_has_written_there_is_kept_too() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(LIMITS_FILE), "threads = 2\nupload-mbit = 1.5\n").unwrap();
    let (handle, _relends) = LimitsHandle::new(folder.path(), Limits::default(), bounds());
    handle.change(LimitChange { hours: LimitUpdate::Unlimited, ..LimitChange::default() }).unwrap();
    let kept = text(folder.path());
    assert!(kept.ends_with("hours = \"\"\nthreads = \"2\"\nupload_mbit = \"1.5\"\n"), "{kept}");
}

#[test]
fn what_does_not_hold_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, mut relends) = LimitsHandle::new(folder.path(), Limits { threads: 8, ..Limits::default() }, bounds());
    let change =
        LimitChange { memory_bytes: LimitUpdate::To(2 << 30), threads: LimitUpdate::To(4), ..LimitChange::default() };
    assert!(handle.change(change).unwrap()[0].starts_with("lends its models anew"));
    assert_eq!((handle.change(change), handle.relending()), (Err(LimitError::Busy), Relending::UnderWay));
    let relend = relends.try_recv().unwrap();
    assert_eq!(relend.over((None, 8)), (Some(2 << 30), 4));
    handle.settled(relend, Err("too little".into()));
    assert_eq!((handle.limits().threads, text(folder.path())), (8, String::new()));
    handle.change(change).unwrap();
    handle.settled(relends.try_recv().unwrap(), Ok("lends".into()));
    assert_eq!((handle.limits().threads, handle.limits().memory_bytes), (4, Some(2 << 30)));
    assert!(text(folder.path()).ends_with("memory = \"2048MiB\"\nthreads = \"4\"\n"));
    let all = LimitChange { threads: LimitUpdate::Unlimited, ..LimitChange::default() };
    handle.change(all).unwrap();
    let relend = relends.try_recv().unwrap();
    assert_eq!(relend.over((None, 4)), (None, 8), "as many as there are");
    handle.settled(relend, Err("too little".into()));
    assert_eq!(handle.relending(), Relending::Refused { why: "too little".into() });
    handle.change(upload(LimitUpdate::To(8.0))).unwrap();
    assert_eq!(handle.relending(), Relending::None, "that was of the change before");
    drop(relends);
    assert_eq!(handle.change(change), Err(LimitError::LendsNothing));
}

#[test]
fn what_no_start_would_take_is_refused_and_what_goes_before_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = BTreeMap::from([(UPLOAD, "--upload-mbit 5".to_owned())]);
    let bounds = LimitBounds { fixed, has_cores: true, ..bounds() };
    let (handle, mut relends) = LimitsHandle::new(folder.path(), Limits::default(), bounds);
    let nothing = LimitChange::default();
    for wrong in [
        upload(LimitUpdate::To(0.0)),
        upload(LimitUpdate::To(f64::NAN)),
        LimitChange { memory_bytes: LimitUpdate::To(1), ..nothing },
        LimitChange { threads: LimitUpdate::To(1), ..nothing },
        LimitChange { threads: LimitUpdate::To(9), ..nothing },
    ] {
        assert!(matches!(handle.change(wrong), Err(LimitError::Value { .. })), "{wrong:?}");
    }
    assert_eq!(text(folder.path()), "");
    let said = handle.change(upload(LimitUpdate::To(1.5))).unwrap();
    assert!(said[1].contains("--upload-mbit 5 holds again"), "{said:?}");
    let said = handle.change(LimitChange { threads: LimitUpdate::To(2), ..nothing }).unwrap();
    assert!(said[0].contains("next start") && relends.try_recv().is_err(), "{said:?}");
    assert!(text(folder.path()).contains("threads = \"2\""));
    let (full, _relends) = LimitsHandle::new(&folder.path().join("gone"), Limits::default(), super::tests::bounds());
    assert!(matches!(full.change(upload(LimitUpdate::To(1.0))), Err(LimitError::NotKept { .. })));
    assert_eq!(full.limits().upload_mbit, None, "what cannot be kept changes nothing");
}
