// An answer's text: paragraphs as they are, and what stands between fences as code. Never HTML.

export function Text({ text }: { text: string }) {
  const parts = text.split(/^```/m);
  return (
    <>
      {parts.map((part, i) => {
        if (i % 2 === 0) return part.trim() ? <p key={i}>{part.replace(/^\n+|\n+$/g, "")}</p> : null;
        const [, language, code] = /^([^\n]*)\n?([\s\S]*)$/.exec(part) ?? ["", "", part];
        return (
          <pre key={i} tabIndex={0} aria-label={language ? `Code: ${language}` : "Code"} role="region">
            <code>{code}</code>
          </pre>
        );
      })}
    </>
  );
}
