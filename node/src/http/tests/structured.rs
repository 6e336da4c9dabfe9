//! Answers that have to have a form: what is asked for travels with the request, and what is none goes nowhere.

use super::*;
use tsnode_protocol::{Constraint, Grammar};

fn asked(api: &Api) -> Option<Constraint> {
    api.last_asked().generation.sampling.constraint.map(|constraint| *constraint)
}

#[tokio::test]
async fn a_form_travels_with_every_answer_of_a_request() {
    let api = Api::up(said(End::Stop)).await;
    let schema = json!({ "type": "object", "properties": { "z": { "type": "string" }, "a": {} } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let held = Constraint { grammar: Grammar::JsonSchema(schema.to_string()), ends: vec![Token(1)] };
    for (path, mut body) in [(CHAT, json!({ "messages": hello() })), (TEXT, json!({ "prompt": "x" }))] {
        assert_eq!(api.post(path, body.clone()).await.0, 200);
        assert_eq!(asked(&api), None);
        body["response_format"] = format.clone();
        body["n"] = json!(2);
        let (status, answer) = api.post(path, body).await;
        assert_eq!((status, asked(&api)), (200, Some(held.clone())), "{answer}");
    }
    let both = api.asked.lock().unwrap();
    assert_eq!(both.iter().filter(|p| p.generation.sampling.constraint.as_deref() == Some(&held)).count(), 4);
}

#[tokio::test]
async fn what_is_no_form_is_a_400_that_names_the_field_and_the_place() {
    let api = Api::up(said(End::Stop)).await;
    let within = json!({ "type": "object", "properties": { "a": { "items": { "type": "intger" } } } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": within } });
    let long = "a".repeat(70_000);
    for (body, param, said) in [
        (json!({ "response_format": format }), "response_format", "#/properties/a/items: Invalid type: intger"),
        (json!({ "guided_json": false }), "guided_json", "Unsatisfiable"),
        (json!({ "guided_regex": "a(b" }), "guided_regex", "unclosed group"),
        (json!({ "guided_regex": long }), "guided_regex", "70000 bytes, of 65536"),
        (json!({ "guided_grammar": "start: b" }), "guided_grammar", "b"),
        (json!({ "structured_outputs": { "json": within } }), "structured_outputs", "#/properties/a/items"),
        (json!({ "guided_choice": ["a"], "ignore_eos": true }), "ignore_eos", "nothing may follow"),
    ] {
        let mut request = body.clone();
        request["prompt"] = json!("x");
        let (status, answer) = api.post(TEXT, request).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(said), "{answer}");
    }
    assert!(api.asked.lock().unwrap().is_empty(), "nothing wrong reaches the gateway");
}
