/* Ranks pages by how many words of the query their titles have; Sphinx alone sorts such pages by name. */
var Scorer = {
  score: ([docname, title, , , score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().match(/[\w-]{3,}/g) || [];
    const text = `${title} ${docname}`.toLowerCase();
    const found = words.filter((word) => text.includes(word.slice(0, 5))).length;
    const isAside = /^(index|changelog|evidence\/|reference\/)/.test(docname);
    return score + (20 * found) / (words.length || 1) - (isAside ? 3 : 0);
  },

  // The values of Sphinx's own scorer.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
