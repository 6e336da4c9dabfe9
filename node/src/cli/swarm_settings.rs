//! What members have set for their swarm, in words: who set it, when, and what becomes of it.

use super::{output, text_layout::harmless};
use crate::view::{AttainmentView, OverflowView, SwarmView};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tsnode_coordinator::settings::SwarmSettings;
use tsnode_protocol::{
    BatchPolicy, ChosenPolicy, ModelId, Phase, PolicyChoice, Replayed, RequestClass, RoutePolicy, SettingKey,
    SettingValue, SwarmSetting,
};

/// The newest of each, as a view has them.
pub(super) fn of(view: &SwarmView) -> SwarmSettings {
    let mut settings = SwarmSettings::default();
    settings.take_in(&view.settings);
    settings
}

/// A model's name, as people know it.
pub(super) fn model(view: &SwarmView, id: Option<ModelId>) -> String {
    let Some(id) = id else { return "every model".into() };
    view.models.iter().find(|m| m.id == id).map_or_else(|| id.to_string(), |m| harmless(&m.name))
}

/// By whom it was set, and how long ago.
pub(super) fn origin(view: &SwarmView, setting: &SwarmSetting) -> String {
    let who = if setting.by == view.me {
        "this peer".into()
    } else {
        harmless(&output::name(&output::names(view), setting.by))
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("set by {who} {} ago", span(now.saturating_sub(Duration::from_millis(setting.at))))
}

fn span(time: Duration) -> String {
    match time.as_secs() {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

/// Everything that is set, a line each; nothing of what was taken back.
pub(super) fn lines(view: &SwarmView) -> Vec<(&'static str, String)> {
    let line = |setting: &SwarmSetting| {
        let origin = origin(view, setting);
        match (setting.key, setting.value) {
            (SettingKey::Targets { model: id, class }, SettingValue::Targets(targets)) if !targets.is_empty() => {
                Some(("targets", format!("{targets} for {class} requests to {}; {origin}", model(view, id))))
            }
            (SettingKey::Route { model: id }, SettingValue::Route(Some(policy))) => {
                let now = if policy == RoutePolicy::Auto { now(view, id, routes) } else { String::new() };
                Some(("routing", format!("{policy} for {}{now}; {origin}", model(view, id))))
            }
            (SettingKey::Batch { model: id }, SettingValue::Batch(Some(policy))) => {
                let now = if policy == BatchPolicy::Auto { now(view, id, batches) } else { String::new() };
                Some(("batching", format!("{policy} for {}{now}; {origin}", model(view, id))))
            }
            _ => None,
        }
    };
    let kept = view.attainment.iter().map(|a| ("in time", attained(a)));
    let overflows = view.overflows.iter().map(|o| ("overflow", overflowed(o)));
    view.settings.iter().filter_map(line).chain(kept).chain(overflows).collect()
}

fn overflowed(o: &OverflowView) -> String {
    let (prompts, answers, model) = (o.prompts, o.answers, harmless(&o.model));
    format!(
        "groups for prompts had no room for {model} {prompts} times, those for answers {answers}, since this peer started"
    )
}

fn attained(a: &AttainmentView) -> String {
    let (part, requests) = (100.0 * a.in_time as f64 / a.requests.max(1) as f64, a.requests);
    format!("{part:.0} % of {requests} {} requests to {} here in ten minutes", a.class, harmless(&a.model))
}

/// What plans for a model are held against, for `tsnode plan --why`.
pub(super) fn held_against(view: &SwarmView, id: Option<ModelId>, slo: &str) -> String {
    let settings = of(view);
    match id.and_then(|id| settings.targets(id, RequestClass::Interactive)) {
        Some((targets, setting)) => format!("in time is within {targets}; {}", origin(view, setting)),
        None => format!("in time is within {slo} of what the fastest group takes; no targets are set (tsnode targets)"),
    }
}

/// How a model's requests are routed, and where that was chosen by measurement, by what.
pub(super) fn routed(view: &SwarmView, id: Option<ModelId>) -> String {
    let settings = of(view);
    let Some((id, (policy, setting))) = id.and_then(|id| Some((id, settings.route(id)?))) else {
        return "requests are routed by live, as nobody has set anything else (tsnode route)".into();
    };
    let choice = of_plan(view).filter(|_| policy == RoutePolicy::Auto).and_then(|all| PolicyChoice::of_routes(all, id));
    let by = choice.map_or(policy, |(_, by)| by);
    let pools = if by == RoutePolicy::Pools { pools(view, id) } else { String::new() };
    let origin = origin(view, setting);
    match (policy, choice) {
        (RoutePolicy::Auto, Some((choice, _))) => {
            format!("requests are routed by {by}{pools}, chosen as auto was {origin}{}", replayed(choice))
        }
        (RoutePolicy::Auto, None) => format!(
            "requests are routed by live; auto was {origin}, and chooses once a hundred requests have come and ended, where the plan \
             has more than one way for them"
        ),
        _ => format!("requests are routed by {policy}{pools}; {origin}"),
    }
}

/// How a model's steps are formed, and where that was chosen by measurement, by what.
pub(super) fn formed(view: &SwarmView, id: Option<ModelId>) -> String {
    let settings = of(view);
    let Some((id, (policy, setting))) = id.and_then(|id| Some((id, settings.batch(id)?))) else {
        return "steps are formed by chunked, as nobody has set anything else (tsnode batch)".into();
    };
    let choice =
        of_plan(view).filter(|_| policy == BatchPolicy::Auto).and_then(|all| PolicyChoice::of_batches(all, id));
    let origin = origin(view, setting);
    match (policy, choice) {
        (BatchPolicy::Auto, Some((choice, by))) => {
            format!("steps are formed by {by}, chosen as auto was {origin}{}", replayed(choice))
        }
        (BatchPolicy::Auto, None) => format!(
            "steps are formed by chunked; auto was {origin}, and chooses once a hundred requests have come and ended, where a group \
             computes both prompts and answers"
        ),
        _ => format!("steps are formed by {policy}; {origin}"),
    }
}

fn of_plan(view: &SwarmView) -> Option<&[PolicyChoice]> {
    view.plan.as_ref().map(|plan| &plan.chosen[..])
}

/// What the plan has chosen of routes, of models that it is left to now: one for which members have set a policy since is routed by
/// that.
pub(super) fn routes(view: &SwarmView) -> Vec<&PolicyChoice> {
    let settings = of(view);
    let is_left = |choice: &&PolicyChoice| {
        let is_auto = settings.route(choice.model).is_some_and(|(by, _)| by == RoutePolicy::Auto);
        is_auto && matches!(choice.policy, ChosenPolicy::Route(_))
    };
    of_plan(view).into_iter().flatten().filter(is_left).collect()
}

/// The same of how steps are formed.
pub(super) fn batches(view: &SwarmView) -> Vec<&PolicyChoice> {
    let settings = of(view);
    let is_left = |choice: &&PolicyChoice| {
        let is_auto = settings.batch(choice.model).is_some_and(|(by, _)| by == BatchPolicy::Auto);
        is_auto && matches!(choice.policy, ChosenPolicy::Batch(_))
    };
    of_plan(view).into_iter().flatten().filter(is_left).collect()
}

/// What was chosen for models that this is about, where that is done by measurement.
fn now(view: &SwarmView, id: Option<ModelId>, chosen: fn(&SwarmView) -> Vec<&PolicyChoice>) -> String {
    let chosen = chosen(view).into_iter().filter(|choice| id.is_none_or(|id| id == choice.model));
    let now: Vec<String> =
        chosen.map(|choice| format!("{} by {}", model(view, Some(choice.model)), choice.policy)).collect();
    if now.is_empty() { ", which has chosen nothing yet".into() } else { format!(", now {}", now.join(", ")) }
}

/// What became of replayed requests by the policy that was chosen, and by the others.
fn replayed(choice: &PolicyChoice) -> String {
    let told = |r: &Replayed| {
        format!("{:.1} % in time and nine of ten within {:.1} times the fastest", 100.0 * r.in_time, r.slowness)
    };
    let Some(best) = choice.of_chosen() else { return String::new() };
    let others = choice.tried.iter().filter(|tried| tried.policy != choice.policy);
    let others: String = others.map(|tried| format!("; by {} {}", tried.policy, told(tried))).collect();
    format!(": of {} requests like those of late, {:.2} a second, {}{others}", choice.requests, choice.rate, told(best))
}

/// How many groups each pool has of its own.
fn pools(view: &SwarmView, id: ModelId) -> String {
    let groups = || view.plan.iter().flat_map(|plan| &plan.groups).filter(move |group| group.model == id);
    let [prompts, answers, both] = [Phase::Prefill, Phase::Decode, Phase::Mixed]
        .map(|phase| groups().filter(|group| group.phase == phase).count());
    format!(" (groups: {prompts} for prompts, {answers} for answers, {both} for both)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use tsnode_protocol::{Epoch, PeerId, Plan, Seconds, Targets, Term};

    #[test]
    fn what_is_set_is_said_with_who_and_what_was_taken_back_is_not() {
        let (key, at) = (SettingKey::Targets { model: None, class: RequestClass::Interactive }, 0);
        let targets = Targets { ttft: Some(Seconds(0.5)), ..Targets::default() };
        let set = |key, value, by| SwarmSetting { key, value, at, by };
        let route = SettingKey::Route { model: None };
        let mut seen = view();
        seen.settings = vec![
            set(key, SettingValue::Targets(targets), seen.me),
            set(route, SettingValue::Route(Some(RoutePolicy::Shortest)), PeerId([7; 32])),
        ];
        let said: Vec<String> = lines(&seen).into_iter().map(|(label, text)| format!("{label}: {text}")).collect();
        assert!(
            said[0].starts_with("targets: ttft 500 ms for interactive requests to every model; set by this peer"),
            "{said:?}"
        );
        assert!(said[1].starts_with("routing: shortest for every model; set by …"), "{said:?}");
        seen.settings = vec![set(key, SettingValue::Targets(Targets::default()), seen.me)];
        assert_eq!(lines(&seen), []);
        let model = Some(ModelId([1; 16]));
        assert!(held_against(&seen, model, "e2e=10x").contains("e2e=10x"));
        assert!(routed(&seen, model).starts_with("requests are routed by live"));
        seen.settings = vec![set(route, SettingValue::Route(Some(RoutePolicy::Pools)), seen.me)];
        seen.overflows = vec![OverflowView { model: "tiny".into(), prompts: 12, answers: 3 }];
        let said = routed(&seen, model);
        assert!(
            said.starts_with("requests are routed by pools (groups: ") && said.contains("set by this peer"),
            "{said}"
        );
        let (label, said) = lines(&seen).pop().unwrap();
        assert!(label == "overflow" && said.contains("no room for tiny 12 times, those for answers 3"), "{said}");
    }

    #[test]
    fn what_was_chosen_by_measurement_is_said_with_the_figures_it_was_chosen_by() {
        let (route, id) = (SettingKey::Route { model: None }, ModelId([1; 16]));
        let mut seen = view();
        let value = SettingValue::Route(Some(RoutePolicy::Auto));
        seen.settings = vec![SwarmSetting { key: route, value, at: 0, by: seen.me }];
        let nothing_yet = routed(&seen, Some(id));
        assert!(nothing_yet.starts_with("requests are routed by live; auto was set by this peer"), "{nothing_yet}");
        assert!(
            lines(&seen)[0].1.starts_with("auto for every model, which has chosen nothing yet; "),
            "{:?}",
            lines(&seen)
        );
        let tried = |policy, in_time, slowness| Replayed { policy, in_time, slowness };
        let [live, shortest] = [RoutePolicy::Live, RoutePolicy::Shortest].map(ChosenPolicy::Route);
        let [chunked, mixed] = [BatchPolicy::Chunked, BatchPolicy::Mixed].map(ChosenPolicy::Batch);
        let by = |policy, other| {
            let tried = vec![tried(other, 0.8, 9.0), tried(policy, 0.975, 2.5)];
            PolicyChoice { model: id, policy, requests: 300, rate: 0.5, tried }
        };
        let made = vec![by(shortest, live), by(mixed, chunked)];
        let (epoch, term, reason) = (Epoch(1), Term(0), String::new());
        seen.plan = Some(Plan { epoch, term, parent: None, groups: vec![], routes: vec![], chosen: made, reason });
        let said = routed(&seen, Some(id));
        assert!(said.starts_with("requests are routed by shortest, chosen as auto was set by this peer"), "{said}");
        let figures = ": of 300 requests like those of late, 0.50 a second, 97.5 % in time and nine of ten within 2.5 times the \
                       fastest; by live 80.0 % in time and nine of ten within 9.0 times the fastest";
        assert!(said.ends_with(figures), "{said}");
        assert!(lines(&seen)[0].1.contains(" by shortest; set by this peer"), "{:?}", lines(&seen));
        assert_eq!((routes(&seen).len(), batches(&seen).len()), (1, 0), "nobody has left steps to it");
        assert!(
            formed(&seen, Some(id)).starts_with("steps are formed by chunked, as nobody"),
            "{}",
            formed(&seen, Some(id))
        );
        let (key, value) = (SettingKey::Batch { model: None }, SettingValue::Batch(Some(BatchPolicy::Auto)));
        seen.settings.push(SwarmSetting { key, value, at: 0, by: seen.me });
        let said = formed(&seen, Some(id));
        assert!(said.starts_with("steps are formed by mixed, chosen as auto was set by this peer"), "{said}");
        assert!(said.contains("97.5 % in time") && said.contains("; by chunked 80.0 % in time"), "{said}");
        assert!(lines(&seen)[1].1.contains(" by mixed; set by this peer"), "{:?}", lines(&seen));
        // The plan says so until there is another, and the model is routed by what was set for it since.
        let (key, value) = (SettingKey::Route { model: Some(id) }, SettingValue::Route(Some(RoutePolicy::Pools)));
        seen.settings.push(SwarmSetting { key, value, at: 1, by: seen.me });
        assert!(
            lines(&seen)[0].1.starts_with("auto for every model, which has chosen nothing yet; "),
            "{:?}",
            lines(&seen)
        );
        assert_eq!(routes(&seen), Vec::<&PolicyChoice>::new());
    }
}
