//! The document and the reader say the same.

use super::request_fields::{At, Field, FieldType, all};
use crate::http::{
    fields::asked,
    tests::{Api, CHAT, TEXT, hello, said},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tsnode_protocol::stream::End;

const PLACES: [(&str, At); 2] = [(TEXT, At::Completions), (CHAT, At::Chat)];

fn body(path: &str) -> Value {
    if path == TEXT {
        json!({ "prompt": "x", "max_tokens": 4 })
    } else {
        json!({ "messages": hello(), "max_tokens": 4 })
    }
}

/// Values that a field takes, and values that it does not.
fn examples(field: &Field) -> (Vec<Value>, Vec<Value>) {
    match field.kind {
        FieldType::Text => (vec![], vec![json!(1), json!([])]),
        FieldType::Flag => (vec![json!(false)], vec![json!("x"), json!(1)]),
        FieldType::Whole(low, high) if high == i64::MAX => {
            (vec![json!(low), json!(high)], vec![json!("x"), json!(1.5)])
        }
        FieldType::Whole(low, high) => {
            (vec![json!(low)], vec![json!(low - 1), json!(high + 1), json!("x"), json!(1.5)])
        }
        FieldType::Number(low, high) => {
            (vec![json!(low), json!(high)], vec![json!(low - 0.1), json!(high + 0.1), json!("x")])
        }
        FieldType::Packing(names) => {
            let each = names.iter().flat_map(|name| [json!(name), json!(format!("{name}@128"))]);
            (each.collect(), vec![json!("x"), json!(1), json!("int4@100"), json!("@128")])
        }
        FieldType::Only(value) => (vec![serde_json::from_str(value).unwrap()], vec![json!("x"), json!(7)]),
        FieldType::Other(_) | FieldType::Any => (vec![], vec![]),
    }
}

#[tokio::test]
async fn a_field_takes_what_the_document_says_and_nothing_else() {
    let api = Api::up(said(End::Stop)).await;
    for (path, at) in PLACES {
        for field in all().filter(|field| field.at.is_for(at)) {
            let (taken, refused) = examples(&field);
            for (value, good) in taken.into_iter().map(|v| (v, true)).chain(refused.into_iter().map(|v| (v, false))) {
                let mut body = body(path);
                body[field.name] = value;
                if field.name == "top_logprobs" {
                    body["logprobs"] = json!(true);
                }
                let (status, answer) = api.post(path, body.clone()).await;
                let named = answer["error"]["param"] == field.name;
                assert!(if good { status == 200 } else { status == 400 && named }, "{body}: {status} {answer}");
            }
            let mut body = body(path);
            if !body.as_object().unwrap().contains_key(field.name) {
                body[field.name] = Value::Null;
                assert_eq!(api.post(path, body).await.0, 200, "null is as if it were not there: {}", field.name);
            }
        }
    }
}

#[tokio::test]
async fn the_reader_looks_for_no_field_that_the_document_has_not() {
    let api = Api::up(said(End::Stop)).await;
    for (path, at) in PLACES {
        asked::forget();
        assert_eq!(api.post(path, body(path)).await.0, 200);
        let known: BTreeSet<String> = all().filter(|f| f.at.is_for(at)).map(|f| f.name.to_owned()).collect();
        assert_eq!(asked::names().difference(&known).collect::<Vec<_>>(), [""; 0], "{path}");
    }
}

#[tokio::test]
async fn the_document_is_there_and_whole() {
    let api = Api::up(said(End::Stop)).await;
    let document: Value = api.get("/openapi.json").await.json().await.unwrap();
    let schema = &document["paths"][TEXT]["post"]["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(schema["properties"]["n"]["maximum"], 128);
    let text = document.to_string();
    for part in text.split("#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name} is named and not there");
    }
    assert!(!text.contains("\"prompt\":null"), "a table's own schemas are JSON");
}
